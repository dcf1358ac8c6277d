"""Assembly of batches from pieces, each read by one thread into its place."""

import collections
import contextlib
import math
import threading
import weakref
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from largebatch.data.reading import Reading, read_ahead

Arrays = tuple[np.ndarray, ...]
_SPARE = 2


class Rows(Protocol):
    """Reads rows of a batch; can be pickled into a worker process."""

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Return height, width and channels of the images of a batch."""
        ...

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        """Read rows [first, last) of the local rows of a batch.

        Args:
            batch: Number of the batch.
            first: First row.
            last: Row to stop before.
            out: uint8 (last - first, *shape), destination of the images; None allocates it.

        Returns:
            The images (`out` if given), and other arrays with the same number of rows.
        """
        ...


def assembled(
    rows: Rows, batches: int, local: int, largest: int, reading: Reading
) -> Generator[Arrays]:
    """Yield complete batches in order.

    Memory is that of `read_ahead`, of the batches of all pieces in flight, and of two spare
    batches.

    Args:
        rows: Reads the rows.
        batches: Number of batches.
        local: Local rows of a batch.
        largest: Bytes of the largest image.
        reading: Threads, processes and memory.

    Yields:
        The result of `rows.read` for all local rows of a batch.
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
            else:  # copied one by one, so that a batch is never held twice
                images, others = copies.array((local, *rows.shape(batch))), []
                for first, last in cut:
                    images[first:last], *other = next(pieces)
                    others.append(other)
            yield images, *(np.concatenate(column) for column in zip(*others, strict=True))
    finally:
        pieces.close()


class _Wholes:
    """The images of the batches in flight."""

    def __init__(self, rows: Rows, local: int) -> None:
        self._rows = rows
        self._local = local
        self._buffers = Buffers()
        self._open: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def get(self, batch: int) -> np.ndarray:
        """Return the images of a batch, some of which may not be read yet."""
        with self._lock:
            if batch not in self._open:
                shape = (self._local, *self._rows.shape(batch))
                self._open[batch] = self._buffers.array(shape)
            return self._open[batch]

    def take(self, batch: int) -> np.ndarray:
        """Remove and return the images of a batch whose last piece has been read."""
        with self._lock:
            return self._open.pop(batch)


@dataclass(frozen=True)
class _InPlace:
    """Reads pieces into their batches; returns the arrays other than images."""

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


class Buffers:
    """Arrays whose memory is reused when nothing refers to them or to a view of them.

    A new array costs as much as a copy, since the kernel clears its pages. The two arrays released
    last are kept. Thread-safe; a pickled instance is empty.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray] = collections.deque(maxlen=_SPARE)

    def __reduce__(self) -> tuple:
        return Buffers, ()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of uint8, uninitialised, to which nothing else refers."""
        length = math.prod(shape)
        memory = None
        with contextlib.suppress(IndexError):
            while memory is None or len(memory) != length:  # drop arrays of other sizes
                memory = self._free.pop()
        if memory is None or len(memory) != length:
            memory = np.empty(length, np.uint8)
        # Over a memoryview: views then refer to `whole`, not past it to `memory`.
        whole = np.frombuffer(memoryview(memory), np.uint8)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole.reshape(shape)
