"""Pixels, labels and sizes of a decoded store, read by example index."""

import functools
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from largebatch.data.decoded_store import Index, file_name, unreadable
from largebatch.errors import DataError

_OPEN_FILES = 256  # of one split; a process may commonly open 1,024


class StoredSplit:
    """The pixels, labels and sizes of one split, by example index.

    It uses `preadv` and not a memory map: they are equally fast on cached files, but a map reads
    six times the bytes needed of others, and an error in it kills the process. Both release the
    interpreter lock. The `_OPEN_FILES` files used last stay open.

    Attributes:
        size: S, pixels a side.
        labels: int32 (n,).
        sizes: int32 (n, 2), height and width of the original images.
    """

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        """Read labels and sizes, and check that the files of images are complete.

        Args:
            directory: The store.
            index: Its index.
            split: One of its splits.

        Raises:
            DataError: A file is absent or differs from the index.
        """
        shards = index.splits[split]
        side = self.size = index.size
        self._starts = np.cumsum([0] + [shard.examples for shard in shards])
        self._images: list[tuple[str, int]] = []  # file, and offset of its pixels
        labels, sizes = [], []
        for number, shard in enumerate(shards):
            images, *columns = (
                directory / file_name(split, what, number, len(shards))
                for what in ("images", "labels", "sizes")
            )
            n = shard.examples
            self._images.append((str(images), _array(images, "uint8", (n, side, side, 3)).offset))
            labels.append(np.array(_array(columns[0], "int32", (n,))))
            sizes.append(np.array(_array(columns[1], "int32", (n, 2))))
        self.labels, self.sizes = np.concatenate(labels), np.concatenate(sizes)
        low, high = self.labels.min(), self.labels.max()
        if low < 0 or high >= len(index.classes):
            raise DataError(
                f"{directory}: {split} labels are {low} to {high}, expected 0 to "
                f"{len(index.classes) - 1}; prepare the store again"
            )
        if self.sizes.min() < 1:
            raise DataError(f"{directory}: a {split} size is below 1; prepare the store again")
        # A cache of the class, not of a method: no cycle may keep the files open.
        self._open = functools.lru_cache(_OPEN_FILES)(_Descriptor)

    def images(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Read whole images.

        Args:
            ids: int64 (b,), in [0, n).
            out: uint8 (b, S, S, 3), contiguous, destination of the images; None allocates it.

        Returns:
            uint8 (b, S, S, 3).

        Raises:
            DataError: A file cannot be read.
        """
        shape = (len(ids), self.size, self.size, 3)
        images = np.empty(shape, np.uint8) if out is None else out
        for image, shard, row in zip(images, *self._places(ids), strict=True):
            self._fill(image, shard, row)
        return images

    def boxes(self, ids: np.ndarray, boxes: np.ndarray) -> Iterator[np.ndarray]:
        """Read a box of each image, one after another, without the rows above and below it.

        Args:
            ids: int64 (b,), in [0, n).
            boxes: int64 (b, 4): top, left, height, width, within the image.

        Yields:
            uint8 (height, width, 3).

        Raises:
            DataError: A file cannot be read.
        """
        for shard, row, box in zip(*self._places(ids), boxes.tolist(), strict=True):
            top, left, height, width = box
            band = np.empty((height, self.size, 3), np.uint8)
            self._fill(band, shard, row + top)
            yield band[:, left : left + width]

    def _places(self, ids: np.ndarray) -> tuple[list[int], list[int]]:
        """Return the shard of each example, and its offset in that file in rows of pixels."""
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        return shards.tolist(), ((ids - self._starts[shards]) * self.size).tolist()

    def _fill(self, rows: np.ndarray, shard: int, first: int) -> None:
        """Read rows of pixels, uint8 (rows, S, 3), beginning with row `first` of the file."""
        path, begin = self._images[shard]
        try:
            file = self._open(path)  # referenced until the read has returned, see _Descriptor
            count = os.preadv(file.number, [rows], begin + first * self.size * 3)
        except OSError as error:
            raise unreadable(path, error) from error
        if count != rows.nbytes:
            raise DataError(f"{path} has become shorter while in use; prepare the store again")


class _Descriptor:
    """An open file, closed with its last reference and so never during a read."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.number).atexit = False


def _array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Map a .npy file after checking that it is the expected array."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # never unpickles
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a complete array ({error}); prepare the store again"
        ) from error
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise DataError(
            f"{path} is {array.dtype} {array.shape}, expected {dtype} {shape} from the index; "
            "prepare the store again"
        )
    return array
