"""The images of a split in the original tars or in class folders: find, check and read them."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from largebatch.data.prepare import jobs, names
from largebatch.data.prepare.jobs import system_errors
from largebatch.errors import DataError

_LARGEST_IMAGE = 1 << 28  # bytes; each image is read at once, and ImageNet's are far smaller


class Row(NamedTuple):
    """One image: its file name, its label, and where its bytes are in the file that holds it."""

    name: str
    label: int
    offset: int
    size: int


@dataclass(frozen=True)
class Tar:
    """A tar whose images are at known offsets."""

    path: Path

    def read(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """Yield the contents of images.

        Raises:
            DataError: An image cannot be read.
        """
        file = _descriptor(self.path)
        if hasattr(os, "posix_fadvise"):  # read ahead in the order of the disk
            for row in sorted(rows, key=lambda row: row.offset):
                os.posix_fadvise(file, row.offset, row.size, os.POSIX_FADV_WILLNEED)
        for row in rows:
            with system_errors(self.path):
                data = os.pread(file, row.size, row.offset)
            if len(data) != row.size:
                raise DataError(
                    f"{self.path} ends within {row.name}: it has become shorter since the "
                    "preparation began; get the tar again"
                )
            yield data

    def where(self, row: Row) -> str:
        """Return the place of an image for messages."""
        return f"{row.name} in {self.path}"


@functools.cache
def _descriptor(path: Path) -> int:
    """Open a file once per process."""
    return os.open(path, os.O_RDONLY)


@dataclass(frozen=True)
class Folder:
    """A folder of images: one folder per class or, if ``flat``, all images in one."""

    path: Path
    flat: bool

    def read(self, rows: Sequence[Row]) -> Iterator[bytes]:
        """Yield the contents of images; see `Tar.read`."""
        for row in rows:
            path = Path(self.where(row))
            with system_errors(path):
                data = path.read_bytes()
            if len(data) != row.size:
                raise DataError(
                    f"{path} has {len(data):,} bytes, {row.size:,} when the preparation began; "
                    "do not change the images before it has ended"
                )
            yield data

    def where(self, row: Row) -> str:
        """Return the place of an image for messages."""
        own = () if self.flat else (names.classes()[row.label],)
        return str(self.path.joinpath(*own, row.name))


Archive = Tar | Folder


def check(rows: Sequence[Row], split: str, where: Path, *, partial: bool) -> None:
    """Check that each name occurs once and, unless ``partial``, that no image is missing.

    Args:
        rows: The images of the split.
        split: `train` or `validation`.
        where: What was read, for messages.
        partial: Accept any number of images above 0.

    Raises:
        DataError: The first check that failed.
    """
    if not rows:
        raise DataError(f"{where} holds no images")
    for row in rows:
        if not 0 < row.size <= _LARGEST_IMAGE:
            raise DataError(
                f"{where}: {row.name} has {row.size:,} bytes, which no image of ImageNet has; "
                "get it again"
            )
    name, count = Counter(row.name for row in rows).most_common(1)[0]
    if count > 1:
        raise DataError(f"{where}: {name} occurs {count} times")
    if partial:
        return
    remedy = "get what is missing, or use --allow-partial"
    if len(rows) != names.EXAMPLES[split]:
        raise DataError(
            f"{where}: expected {names.EXAMPLES[split]:,} {split} images, got {len(rows):,}; "
            f"{remedy}"
        )
    least, most = names.PER_CLASS[split]
    of_class = Counter(row.label for row in rows)
    for label, name in enumerate(names.classes()):
        if not least <= of_class[label] <= most:
            raise DataError(
                f"{where}: expected {least:,} to {most:,} images of class {name}, got "
                f"{of_class[label]:,}; {remedy}"
            )


def index_folder(path: Path, split: str, processes: int) -> tuple[Folder, list[Row]]:
    """Find the images of a folder; only that of the validation split may be flat.

    Raises:
        DataError: It cannot be read or holds anything but the expected names.
    """
    entries = _entries(path)
    if split == "validation" and not any(entry.is_dir() for entry in entries):
        return Folder(path, flat=True), _index_files(path, ("validation",), None)
    tasks = [(Path(e.path), names.class_label(e.name, str(path))) for e in entries]
    return Folder(path, flat=False), index_parts(path, _index_class_folder, tasks, processes)


def _index_class_folder(task: tuple[Path, int]) -> list[Row]:
    return _index_files(task[0], names.SPLITS, task[1])


def _index_files(folder: Path, kinds: Sequence[str], label: int | None) -> list[Row]:
    rows = []
    for entry in _entries(folder):
        if not entry.is_file():
            raise DataError(f"{entry.path} is not a file; remove it")
        label_of_image = names.image_label(entry.name, str(folder), kinds, label)
        rows.append(Row(entry.name, label_of_image, 0, entry.stat().st_size))
    return rows


def _entries(path: Path) -> list[os.DirEntry]:
    with system_errors(path), os.scandir(path) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def index_parts(path: Path, function: Callable, tasks: Sequence, processes: int) -> list[Row]:
    """Index the class folders or class tars of a split; the order of the result is arbitrary.

    Args:
        path: Path of the split, for the progress.
        function: Task → rows.
        tasks: One for each class.
        processes: Number of processes.
    """
    rows = []
    with jobs.progress(f"indexing {path.name}", "classes", len(tasks)) as advance:
        for part in jobs.run(function, tasks, processes):
            rows += part
            advance(1)
    return rows
