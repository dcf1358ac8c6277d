"""The images of a split: an index of the original tars or of class folders, and how to read them.

Tars are read in place. Nothing is unpacked, and any member that is not an image of the expected
name stops the preparation.
"""

import functools
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from largebatch.data.prepare import jobs, names
from largebatch.data.prepare.jobs import system_errors
from largebatch.errors import DataError

_LARGEST_IMAGE = 1 << 28  # bytes; each image is read at once, and ImageNet's are far smaller
_LONGEST_HEADER = 1 << 16  # bytes; those of ImageNet have one block of 512
_LONGEST_NAME = 255


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
    return Folder(path, flat=False), _index_parts(path, _index_class_folder, tasks, processes)


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


def _index_parts(path: Path, function: Callable, tasks: Sequence, processes: int) -> list[Row]:
    """Index the class folders or class tars of a split; the order of the result is arbitrary."""
    rows = []
    with jobs.progress(f"indexing {path.name}", "classes", len(tasks)) as advance:
        for part in jobs.run(function, tasks, processes):
            rows += part
            advance(1)
    return rows


@dataclass(frozen=True)
class _TarPart:
    """The validation tar, or a class's tar within the training tar.

    Attributes:
        path: The file.
        where: The tar for messages.
        kinds: The names of images that it may hold.
        label: Of all of its images; None where each has its own.
        begin: Offset of its first byte in the file.
        end: Offset of the byte after its last.
    """

    path: Path
    where: str
    kinds: tuple[str, ...]
    label: int | None
    begin: int
    end: int


def index_tar(path: Path, split: str, processes: int) -> tuple[Tar, list[Row]]:
    """Find the images of a tar from image-net.org.

    Args:
        path: The tar; that of the training split holds a tar of each class.
        split: `train` or `validation`.
        processes: Number of processes.

    Raises:
        DataError: It is not a complete tar, or holds anything but the expected names.
    """
    with system_errors(path):
        end = path.stat().st_size
    whole = _TarPart(path, str(path), ("validation",), None, 0, end)
    if split == "validation":
        return Tar(path), _index_tar_part(whole)
    parts: dict[str, _TarPart] = {}
    for member in _tar_members(whole):
        if member.name in parts:
            raise DataError(f"{path}: {member.name} occurs twice")
        begin, label = member.offset_data, names.tar_label(member.name, str(path))
        parts[member.name] = _TarPart(
            path, f"{path}: {member.name}", ("train",), label, begin, begin + member.size
        )
    return Tar(path), _index_parts(path, _index_tar_part, list(parts.values()), processes)


def _index_tar_part(part: _TarPart) -> list[Row]:
    return [
        Row(
            member.name,
            names.image_label(member.name, part.where, part.kinds, part.label),
            member.offset_data,
            member.size,
        )
        for member in _tar_members(part)
    ]


def _tar_members(part: _TarPart) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar, all of which must be plain files, and check that it is complete.

    Raises:
        DataError: It is not so.
    """
    remedy = "get the tar again"
    with system_errors(part.path), part.path.open("rb", buffering=0) as stream:
        stream.seek(part.begin)
        try:
            with tarfile.open(fileobj=_Headers(stream), mode="r:") as tar:
                while (member := tar.next()) is not None:
                    _check_member(member, part)
                    yield member
                    tar.members.clear()  # it would keep all
                # A damaged header ends the iteration like the end of the tar, a block of zeros.
                at = tar.offset
        # `tarfile` has no exception of its own for some damaged headers.
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"{part.where} is not a complete tar ({error}); {remedy}") from error
        after = os.pread(stream.fileno(), tarfile.BLOCKSIZE, at)
    if at + tarfile.BLOCKSIZE > part.end or after != bytes(tarfile.BLOCKSIZE):
        raise DataError(
            f"{part.where} is damaged or ends early at byte {at:,} of {part.path}; {remedy}"
        )


def _check_member(member: tarfile.TarInfo, part: _TarPart) -> None:
    """Raise a DataError unless a member is a plain file that ends within its tar."""
    if len(member.name) > _LONGEST_NAME:
        problem = f"a member has a name of {len(member.name):,} characters, {member.name[:20]!r}…"
    elif member.sparse is not None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        kind = "sparse" if member.sparse is not None else f"type {member.type!r}"
        problem = f"member {member.name!r} is not a plain file ({kind})"
    elif member.size < 0 or member.offset_data + member.size > part.end:
        problem = f"it ends within {member.name!r}"
    else:
        return
    raise DataError(f"{part.where}: {problem}; get the tar again")


class _Headers:
    """A file from which `tarfile` reads only headers, which are short.

    `tarfile` trusts what a header says of its own length, and could read all of a file into memory;
    in one format it looks for a number until it finds it, beyond the end of the file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell = stream.seek, stream.tell
        self._stream = stream
        self._empty_reads = 0

    def read(self, size: int) -> bytes:
        """Read a header.

        Raises:
            tarfile.ReadError: Its length is impossible, or the file has ended.
        """
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._stream.read(size)
        self._empty_reads = self._empty_reads + 1 if not data and size else 0
        if self._empty_reads > 2:
            raise tarfile.ReadError("unexpected end of data")
        return data
