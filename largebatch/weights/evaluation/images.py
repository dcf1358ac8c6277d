"""Images of another number of channels than the network's, and image files without labels."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.data import Source
from largebatch.data.unreadable import IncompleteReadError
from largebatch.errors import DataError
from largebatch.files import printable

# Weights of red, green and blue in luma (ITU-R BT.601) times 65,536, as in Pillow's mode L.
_LUMA = np.array([19_595, 38_470, 7_471], np.int64)
_FORMATS = {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"}


def to_grey(images: np.ndarray) -> np.ndarray:
    """Return the luma, uint8 (…, 1), of uint8 (…, 3), rounded half up."""
    return ((images @ _LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]


def with_channels(
    source: Source, channels: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Source:
    """Return the source with this number of channels: itself, grey, or three equal channels.

    Args:
        source: Images of 1 or 3 channels.
        channels: That the network takes.
        mean: Mean of the network's normalization, in 0..255.
        std: Standard deviation of the network's normalization, in 0..255.

    Raises:
        DataError: The source or the network has neither 1 nor 3 channels.
    """
    has = source.image_shape[2]
    if has == channels:
        return source
    if {has, channels} != {1, 3}:
        raise DataError(
            f"{source.name} has images of {has} channels, the weights take {channels}; only 1 and "
            "3 can be converted"
        )
    return _Converted(source, channels, mean, std)


class _Converted:
    """A `FallibleSource` and `RectangularSource` with other channels."""

    def __init__(
        self, source: Source, channels: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        self._source = source
        self.name = source.name
        self.classes = source.classes
        self.image_shape = (*source.image_shape[:2], channels)
        self.mean = mean
        self.std = std
        self.sizes = getattr(source, "sizes", None)
        self.explain = getattr(source, "explain", None)

    def __len__(self) -> int:
        return len(self._source)

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._read(self._source.read, ids)

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._read(self._source.read_centres, ids, shape)

    def describe(self) -> str:
        kind = "grey" if self.image_shape[2] == 1 else "three equal channels"
        return f"{self._source.describe()}, converted to {kind}"

    def _read(self, read: Callable, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        try:
            images, labels = read(*arguments)
        except IncompleteReadError as error:
            images, labels = error.partial
            partial = self._convert(images), labels
            raise IncompleteReadError(str(error), partial, error.rows) from error
        return self._convert(images), labels

    def _convert(self, images: np.ndarray) -> np.ndarray:
        return to_grey(images) if self.image_shape[2] == 1 else np.repeat(images, 3, axis=-1)


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


class FileRecords:
    """Files as `Records` whose labels are all 0.

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
        """Return the path of a file."""
        return printable(self._files[example])

    def marks(self) -> Iterable[bytes]:
        """Return the paths as bytes."""
        return [os.fsencode(path) for path in self._files]

    def describe(self) -> str:
        """Return the number of files in words."""
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
