"""Image files without labels."""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from largebatch.data import Source
from largebatch.errors import DataError
from largebatch.files import printable

_FORMATS = {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"}


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given files, and the image files in and below the given folders, sorted.

    Hidden files and folders and links to folders are skipped. A file that was given by name is
    taken whatever its suffix, and is not opened yet.

    Raises:
        DataError: A folder holds no images.
    """
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(_below(path))
        if not inside:
            raise DataError(
                f"{path} has no images (suffixes: {' '.join(sorted(_suffixes()))}); use another "
                "folder, or name the files"
            )
        files += inside
    return files


class ImageFiles(Source):
    """Image files, whose labels are all 0.

    Attributes:
        failed: Why files could not be read, by id; they count as corrupt.
    """

    name = "files"

    def __init__(self, files: Sequence[Path], classes: tuple[str, ...]) -> None:
        """Take at least one file, and the names of the classes that will be predicted."""
        self.classes = classes
        self.failed: dict[int, str] = {}
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """Return the contents of files, b'' for those that cannot be read."""
        contents = []
        for example in np.asarray(ids).tolist():
            try:
                contents.append(self._files[example].read_bytes())
            except OSError as error:
                self.failed[example] = f"cannot be read: {error.strerror or error}"
                contents.append(b"")
        return contents, np.zeros(len(contents), np.int32)

    def where(self, example: int) -> str:
        return printable(self._files[example])


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
