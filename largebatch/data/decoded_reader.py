"""Reading pixels, labels and sizes of a decoded store, by example index."""

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

    `preadv` and not a memory map: on cached files they are equally fast, but of others a map reads
    six times what is asked for, and an error in one kills the process. Both release the
    interpreter lock. A file of images is opened when it is first read, and closed when it is
    neither among the `_OPEN_FILES` last used nor being read.

    Attributes:
        size: S, pixels a side.
        labels: int32 (n,).
        sizes: int32 (n, 2), height and width of the pictures before they were squeezed.
    """

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        """Reads labels and sizes, and checks that the files of images are whole.

        Args:
            directory: The store.
            index: Its index.
            split: One of its splits.

        Raises:
            DataError: A file is absent or is not what the index says.
        """
        shards = index.splits[split]
        side = self.size = index.size
        self._starts = np.cumsum([0] + [shard.examples for shard in shards])
        self._images: list[tuple[str, int]] = []  # file, and where its pixels begin
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
                f"{directory}: {split} labels go from {low} to {high} but there are "
                f"{len(index.classes)} classes; prepare the store anew"
            )
        if self.sizes.min() < 1:
            raise DataError(f"{directory}: a {split} size is below 1; prepare the store anew")
        # Of the class itself, not of a method: no cycle may keep the files open.
        self._open = functools.lru_cache(_OPEN_FILES)(_Descriptor)

    def images(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Reads whole images.

        Args:
            ids: int64 (b,), in [0, n).
            out: uint8 (b, S, S, 3), contiguous, where the images go; None makes an array.

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
        """Reads a box of each image, one after another, without the rows above and below it.

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
        """The shard of each example and, counted in rows of pixels, its place in that file."""
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        return shards.tolist(), ((ids - self._starts[shards]) * self.size).tolist()

    def _fill(self, rows: np.ndarray, shard: int, first: int) -> None:
        """Reads rows of pixels, uint8 (rows, S, 3), of which `first` is the first in the file."""
        path, begin = self._images[shard]
        try:
            file = self._open(path)  # held until the read has returned, see _Descriptor
            count = os.preadv(file.number, [rows], begin + first * self.size * 3)
        except OSError as error:
            raise unreadable(path, error) from error
        if count != rows.nbytes:
            raise DataError(f"{path} has become shorter while in use; prepare the store anew")


class _Descriptor:
    """An open file, closed with its last reference: never under another thread's read."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.number).atexit = False


def _array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Maps a whole .npy file, once it is known to be the array that is expected."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # of plain numbers: never unpickles
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is no whole array ({error}); prepare the store anew") from error
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise DataError(
            f"{path} is {array.dtype} {array.shape}, not {dtype} {shape} as the index says; "
            "prepare the store anew"
        )
    return array
