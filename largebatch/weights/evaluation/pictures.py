"""Picture files that belong to no data set: found, and read as the pictures of one."""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from largebatch.errors import DataError

_FORMATS = {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"}


def found(places: Sequence[Path]) -> list[Path]:
    """The files that are meant by files and folders.

    A folder stands for the files in and below it that have the suffix of a picture, sorted; hidden
    ones and links to folders are left out. A file is taken whatever it is called, and whether it is
    there shows when it is read.

    Raises:
        DataError: A folder has no picture.
    """
    files = []
    for place in places:
        if not place.is_dir():
            files.append(place)
            continue
        inside = sorted(_below(place))
        if not inside:
            raise DataError(
                f"{place} has no pictures (suffixes: {' '.join(sorted(_suffixes()))}); give "
                "another folder, or the files by name"
            )
        files += inside
    return files


class FileRecords:
    """Files as `Records` without labels.

    Attributes:
        failed: Why files could not be read, by id; they count as undecodable.
    """

    name = "files"

    def __init__(self, files: Sequence[Path], classes: tuple[str, ...]) -> None:
        """Reads nothing yet.

        Args:
            files: At least one.
            classes: Names that predictions will have.
        """
        self.classes = classes
        self.failed: dict[int, str] = {}
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """As of `Records.read`; all labels are 0, and files that cannot be read are empty."""
        contents = []
        for example in np.asarray(ids).tolist():
            try:
                contents.append(self._files[example].read_bytes())
            except OSError as error:
                self.failed[example] = f"cannot be read: {error.strerror or error}"
                contents.append(b"")
        return contents, np.zeros(len(contents), np.int32)

    def where(self, example: int) -> str:
        """As of `Records.where`."""
        return str(self._files[example])

    def marks(self) -> Iterable[bytes]:
        """As of `Records.marks`."""
        return [os.fsencode(path) for path in self._files]

    def describe(self) -> str:
        """As of `Records.describe`."""
        return f"{len(self):,} file(s)"


@functools.cache
def _suffixes() -> frozenset[str]:
    from PIL import Image

    known = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in _FORMATS)


def _below(folder: Path) -> Iterable[Path]:
    for directory, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in _suffixes():
                yield Path(directory, name)
