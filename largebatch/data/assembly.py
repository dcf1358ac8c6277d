"""Batches put together from pieces, each read by one thread into its place."""

import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from largebatch.data.buffers import Buffers
from largebatch.data.reading import Reading, read_ahead

Arrays = tuple[np.ndarray, ...]


class Rows(Protocol):
    """Reads rows of a batch; can be pickled into a worker process."""

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Height, width and channels of the images of a batch."""
        ...

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        """Reads rows [first, last) of the local rows of a batch.

        Args:
            batch: Number of the batch.
            first: First row.
            last: Row to stop before.
            out: uint8 (last - first, *shape), where the images go; None makes an array.

        Returns:
            Images, which are `out` if that is given, and other arrays of as many rows.
        """
        ...


def assembled(
    rows: Rows, batches: int, local: int, largest: int, reading: Reading
) -> Generator[Arrays]:
    """Whole batches in order.

    Memory is that of `read_ahead`, of the batches that what is under way belongs to, and of two
    spare ones.

    Args:
        rows: Reads them.
        batches: How many.
        local: Rows of each batch.
        largest: Bytes of the largest image.
        reading: Threads, processes and memory.

    Yields:
        What `rows.read` returns of all rows of a batch.
    """
    cut = reading.pieces((0, local), largest)
    wholes = None if reading.processes else _Wholes(rows, local)
    load = _Apart(rows, cut) if wholes is None else _InPlace(rows, cut, wholes)
    piece_bytes = (cut[0][1] - cut[0][0]) * largest
    pieces = read_ahead(load, batches * len(cut), piece_bytes, reading)
    copies = Buffers()
    try:
        for batch in range(batches):
            if wholes is not None:
                others = [next(pieces) for _ in cut]
                images = wholes.take(batch)
            else:  # copied as they come, so that a batch is never held twice
                images, others = copies.array((local, *rows.shape(batch))), []
                for first, last in cut:
                    images[first:last], *other = next(pieces)
                    others.append(other)
            yield images, *(np.concatenate(column) for column in zip(*others, strict=True))
    finally:
        pieces.close()


class _Wholes:
    """The images of the batches that are being read."""

    def __init__(self, rows: Rows, local: int) -> None:
        self._rows = rows
        self._local = local
        self._buffers = Buffers()
        self._open: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def get(self, batch: int) -> np.ndarray:
        """The images of a batch, of which some may be missing yet."""
        with self._lock:
            if batch not in self._open:
                shape = (self._local, *self._rows.shape(batch))
                self._open[batch] = self._buffers.array(shape)
            return self._open[batch]

    def take(self, batch: int) -> np.ndarray:
        """The images of a batch whose last piece has been read."""
        with self._lock:
            return self._open.pop(batch)


@dataclass(frozen=True)
class _InPlace:
    """Reads pieces into their batches; returns what is not images."""

    rows: Rows
    cut: tuple[tuple[int, int], ...]
    wholes: _Wholes

    def __call__(self, index: int) -> Arrays:
        batch, piece = divmod(index, len(self.cut))
        first, last = self.cut[piece]
        return self.rows.read(batch, first, last, self.wholes.get(batch)[first:last])[1:]


@dataclass(frozen=True)
class _Apart:
    """Reads pieces in another process."""

    rows: Rows
    cut: tuple[tuple[int, int], ...]

    def __call__(self, index: int) -> Arrays:
        batch, piece = divmod(index, len(self.cut))
        return self.rows.read(batch, *self.cut[piece], None)
