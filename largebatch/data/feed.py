"""Microbatches of training and batches of evaluation, read ahead.

The rows are a function of the sample position and the seed: the number of processes, the size of a
microbatch, threads and the position of a resume do not change them.
"""

import collections
import contextlib
import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from largebatch.data.augment import Augment
from largebatch.data.dataset import Dataset
from largebatch.data.order import Order
from largebatch.data.prefetch import in_threads
from largebatch.data.unreadable import Unreadable
from largebatch.errors import ConfigError

T = TypeVar("T")
_MIB = 1 << 20
PIECE = 32 * _MIB
"""Greatest bytes of images that a thread reads at a time: some 200 photographs, or 0.2 s. Smaller
pieces cost more overhead, larger ones delay the first batch."""
_AHEAD = 512 * _MIB  # of images that each process reads ahead
_MOST = 256  # pieces that wait or are in work: all of them are begun before the first is needed
_SPARE = 2  # buffers that are kept
_MOST_THREADS = 16  # they share the interpreter lock, and a host may have a process for each GPU
_HEADERS = 256  # image files whose headers a thread reads at a time


@dataclass(frozen=True)
class Reading:
    """Threads and memory of reading.

    Attributes:
        threads: Threads that read; 0 reads in the caller's.
        memory_bytes: Greatest total bytes of images that wait or are in work; at least one piece.
        piece_bytes: Bytes of images that a thread reads at a time, at least one image.
    """

    threads: int = 1
    memory_bytes: int = 256 * _MIB
    piece_bytes: int = PIECE

    @classmethod
    def of(cls, threads: int = 0) -> "Reading":
        """Return the reading of a split with 512 MiB, two pieces for each thread.

        Args:
            threads: Number of threads; 0: one for each core, at most 16.
        """
        threads = threads or min(cores(), _MOST_THREADS)
        return cls(threads, _AHEAD, min(PIECE, _AHEAD // (2 * threads)))


@dataclass(frozen=True, eq=False)
class Microbatch:
    """This process's rows of one training microbatch.

    Attributes:
        images: uint8 (rows, H, W, C), augmented, not normalised.
        labels: int32 (rows,).
        position: Sample position of the microbatch's first global row; the same on every process.
        ids: int64 (rows,), the example of each row.
        erased: None, or int32 (rows, 4), boxes that the device erases; see `mixing.erased_boxes`.
        mixtures: None, or float32 (rows, 6), how the device mixes rows 2i and 2i + 1; see
            `mixing.mixtures`.
    """

    images: np.ndarray
    labels: np.ndarray
    position: int
    ids: np.ndarray
    erased: np.ndarray | None = None
    mixtures: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class EvaluationBatch:
    """This process's rows of one evaluation batch.

    Attributes:
        images: uint8 (rows, H, W, C), not normalised; zeros in padding.
        labels: int32 (rows,); 0 in padding.
        mask: float32 (rows,); 1 for an example, 0 for padding.
    """

    images: np.ndarray
    labels: np.ndarray
    mask: np.ndarray


# ---- Rows of training


class TrainRows(NamedTuple):
    """Rows of training at some sample positions."""

    images: np.ndarray
    """uint8 (n, H, W, C), augmented."""
    labels: np.ndarray
    """int32 (n,)."""
    ids: np.ndarray
    """int64 (n,), the example of each row."""
    passed: np.ndarray
    """int64 (n,), the number of undecodable examples before it that were passed over."""
    erased: np.ndarray | None
    mixtures: np.ndarray | None


def train_rows(
    dataset: Dataset,
    order: Order,
    augment: Augment,
    positions: np.ndarray,
    *,
    centre: bool = False,
    limit: int = 0,
    out: np.ndarray | None = None,
) -> TrainRows:
    """Return the rows at sample positions: order, read, decode, crop, augment.

    Each row is a function of its position and the seed. The next decodable example replaces an
    undecodable one: its image, with the random choices of its own id, and its label.

    Args:
        dataset: The training split.
        order: The example at each position.
        augment: Augmentation, with the seed of `order`.
        positions: int64 (n,).
        centre: Whether training uses the central crops of evaluation.
        limit: Greatest number of undecodable examples; one more is not replaced, since the feed
            stops the run.
        out: uint8 (n, H, W, C), contiguous, destination of the images; None allocates it.

    Raises:
        DataError: An example cannot be read.
    """
    ids, epochs, seed = order.ids(positions), order.epochs(positions), order.seed

    def read(rows: slice | np.ndarray, out: np.ndarray | None = None) -> tuple:
        if centre:
            return dataset.read_centres(ids[rows])
        return dataset.read_crops(ids[rows], seed=seed, epochs=epochs[rows], out=out)

    images, labels, rows = read(slice(None), out)
    passed = np.zeros(len(ids), np.int64)
    while len(rows):
        ids[rows] = (ids[rows] + 1) % len(dataset)
        passed[rows] += 1
        if passed[rows[0]] > limit:  # the same for all remaining rows
            break
        images[rows], labels[rows], again = read(rows)
        rows = rows[again]
    images = augment(images, seed=seed, epochs=epochs, ids=ids)
    if out is not None and images is not out:
        out[...] = images
        images = out
    erased, mixtures = augment.for_device(
        dataset.image_shape[:2], seed=seed, positions=positions, epochs=epochs, ids=ids
    )
    return TrainRows(images, labels, ids, passed, erased, mixtures)


def train_microbatches(
    dataset: Dataset,
    order: Order,
    augment: Augment,
    *,
    start: int,
    stop: int,
    microbatch: int,
    rows: tuple[int, int],
    reading: Reading,
    centre: bool = False,
    unreadable: Unreadable | None = None,
) -> Generator[Microbatch]:
    """Return the microbatches at sample positions [start, stop), in order.

    Memory is about `reading.memory_bytes` and that of three local microbatches. See `in_threads`
    for how to stop before the end.

    Args:
        dataset: The training split.
        order: The example at each position; it has the same number of examples.
        augment: Augmentation, with the seed of `order`.
        start: First sample position.
        stop: Sample position to stop before.
        microbatch: Global rows of a microbatch, G; must divide `stop - start`.
        rows: [first, last) of the G rows that this process loads.
        reading: Threads and memory.
        centre: Whether training uses the central crops of evaluation.
        unreadable: Counts the undecodable examples, each of which the next decodable one
            replaces; None raises at the first one.

    Returns:
        Iterator of (stop - start) / G microbatches. An exception of the source is raised
        unchanged by the `next` of its microbatch.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(microbatch, rows)
    if order.examples != len(dataset):
        raise ConfigError(
            f"order: expected {len(dataset)} examples of {dataset.name}, got {order.examples}"
        )
    if not 0 <= start <= stop or (stop - start) % microbatch:
        raise ConfigError(
            f"sample positions {start} to {stop} are not a multiple of the microbatch "
            f"{microbatch}; stop at start + k·{microbatch}"
        )
    if augment.mixes and any(number % 2 for number in (start, microbatch, *rows)):
        raise ConfigError(
            "augment.mixup, augment.cutmix: expected pairs of images in every microbatch and "
            f"process, got {microbatch} images from position {start}, rows {rows}; use an even "
            "batch.images_per_worker"
        )
    account = unreadable or Unreadable("train", len(dataset))

    def read(piece: Piece) -> TrainRows:
        begin = start + piece.number * microbatch + rows[0]
        positions = np.arange(begin + piece.first, begin + piece.last, dtype=np.int64)
        return train_rows(
            dataset,
            order,
            augment,
            positions,
            centre=centre,
            limit=account.limit,
            out=piece.images,
        )

    def finish(batch: int, images: np.ndarray, parts: Sequence[TrainRows]) -> Microbatch:
        _, *columns = zip(*parts, strict=True)
        labels, ids, passed, erased, mixtures = map(_joined, columns)
        for row in np.flatnonzero(passed):
            over = ids[row] - np.arange(passed[row], 0, -1)
            account.add((over % len(dataset)).tolist(), dataset.explain)
        return Microbatch(images, labels, start + batch * microbatch, ids, erased, mixtures)

    shapes = itertools.repeat(dataset.image_shape, (stop - start) // microbatch)
    largest = math.prod(dataset.image_shape)
    return _assembled(shapes, largest, rows[1] - rows[0], read, finish, reading)


# ---- Evaluation


@dataclass(frozen=True, eq=False)
class View:
    """Examples evaluated at one shape.

    Attributes:
        shape: Height and width.
        ids: int64 (n,).
    """

    shape: tuple[int, int]
    ids: np.ndarray


def evaluation_views(
    dataset: Dataset, reading: Reading, side: int = 0, *, rectangular: bool
) -> tuple[View, ...]:
    """Return the examples by the shape at which they are evaluated: in squares, or by aspect.

    By aspect, evaluation sees most of every image. This is the rectangular validation of fast.ai's
    DAWNBench entry (2018): the shorter side stays that of the dataset, the longer is the multiple
    of 64 pixels above it (32 for small images) that is nearest to the image's aspect, at most twice
    as long. Every header is read once.

    Args:
        dataset: The validation split.
        reading: Threads.
        side: Pixels of the shorter side; 0 is the dataset's own.
        rectangular: Whether by aspect.

    Returns:
        One view of all examples in index order; or views by aspect, portraits first, at most nine
        for sides of 224.

    Raises:
        DataError: An example cannot be read.
    """
    count = len(dataset)
    if not rectangular:
        shape = (side, side) if side else dataset.image_shape[:2]
        return (View(shape, np.arange(count, dtype=np.int64)),)
    pieces = [
        np.arange(at, min(at + _HEADERS, count), dtype=np.int64) for at in range(0, count, _HEADERS)
    ]
    # Undecodable images have size 1×1; evaluation counts them.
    sizes = np.concatenate(list(in_threads(dataset.sizes, pieces, reading.threads)))
    shapes = nearest_shapes(sizes, side or dataset.image_shape[0])
    distinct, group = np.unique(shapes, axis=0, return_inverse=True)
    by_aspect = np.argsort(distinct[:, 1] / distinct[:, 0])
    return tuple(
        View((int(distinct[k, 0]), int(distinct[k, 1])), np.flatnonzero(group.ravel() == k))
        for k in by_aspect
    )


def nearest_shapes(sizes: np.ndarray, side: int) -> np.ndarray:
    """Return the shape at which each image is evaluated.

    Args:
        sizes: int64 (b, 2), height and width.
        side: Pixels of the shorter side.

    Returns:
        int64 (b, 2): `side` by a longer side of `side` plus a multiple of 64, or of 32 where `side`
        is below 128, at most twice `side`.
    """
    step = 64 if side >= 128 else 32
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    more = np.rint(side * (long / short - 1) / step).astype(np.int64)
    long = side + step * np.minimum(more, side // step)
    portrait = sizes[:, 0] > sizes[:, 1]
    return np.where(
        portrait[:, None],
        np.stack([long, np.full_like(long, side)], axis=1),
        np.stack([np.full_like(long, side), long], axis=1),
    )


def evaluation_batches(
    dataset: Dataset,
    *,
    batch: int,
    rows: tuple[int, int],
    reading: Reading,
    views: Sequence[View] | None = None,
    unreadable: Unreadable | None = None,
) -> Generator[EvaluationBatch]:
    """Return batches with every example of a split once over all processes.

    Every process gets the same number of batches of the same shapes: ceil(n / batch) for each view
    of n examples, the last one padded. An undecodable example keeps its label and counts, with the
    mean grey as its image: it can only lower the accuracy. Memory and closing are as for
    `train_microbatches`.

    Args:
        dataset: The validation split.
        batch: Global rows of a batch.
        rows: [first, last) of the rows that this process loads.
        reading: Threads and memory.
        views: The examples of each shape; None is all of them at the dataset's own.
        unreadable: Counts the undecodable examples; None raises at the first one.

    Returns:
        Iterator of batches. An exception of the source is raised unchanged by the `next` of its
        batch.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(batch, rows)
    account = unreadable or Unreadable("validation", len(dataset))
    if views is None:
        views = evaluation_views(dataset, reading, rectangular=False)
    chosen = [
        (view.shape, view.ids[at + rows[0] : at + rows[1]])
        for view in views
        for at in range(0, len(view.ids), batch)
    ]

    def read(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        shape, ids = chosen[piece.number]
        ids = ids[piece.first : piece.last]  # may be none in the last batch
        images = piece.images
        images[len(ids) :] = 0
        labels = np.zeros(piece.last - piece.first, np.int32)
        if not len(ids):
            return labels, ids
        images[: len(ids)], labels[: len(ids)], corrupt = dataset.read_centres(ids, shape)
        images[corrupt] = np.rint(dataset.mean)
        return labels, ids[corrupt]

    def finish(
        index: int, images: np.ndarray, parts: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> EvaluationBatch:
        labels, corrupt = map(_joined, zip(*parts, strict=True))
        account.add(corrupt.tolist(), dataset.explain)
        mask = (np.arange(len(images)) < len(chosen[index][1])).astype(np.float32)
        return EvaluationBatch(images, labels, mask)

    shapes = [(*shape, dataset.image_shape[2]) for shape, _ in chosen]
    largest = max(map(math.prod, shapes), default=1)
    return _assembled(shapes, largest, rows[1] - rows[0], read, finish, reading)


# ---- Assembly


class Batch:
    """The images of a batch that several threads read; allocated when the first of them begins.

    Until then nothing is held, and the memory of a batch that has just been used is still in the
    processor's cache.
    """

    def __init__(self, buffers: "Buffers", shape: tuple[int, ...]) -> None:
        """Allocate nothing yet: `shape` is (local rows, H, W, C)."""
        self._buffers, self._shape = buffers, shape
        self._lock = threading.Lock()
        self._images: np.ndarray | None = None

    @property
    def images(self) -> np.ndarray:
        """uint8 (local rows, H, W, C)."""
        with self._lock:
            if self._images is None:
                self._images = self._buffers.array(self._shape)
            return self._images


class Piece(NamedTuple):
    """Rows of a batch that one thread reads."""

    number: int
    """Of the batch."""
    first: int
    last: int
    """Its local rows [first, last)."""
    batch: Batch

    @property
    def images(self) -> np.ndarray:
        """Destination of the images, uint8 (last - first, H, W, C)."""
        return self.batch.images[self.first : self.last]


def _assembled(
    shapes: Iterable[tuple[int, int, int]],
    largest: int,
    local: int,
    read: Callable[[Piece], T],
    finish: Callable[[int, np.ndarray, Sequence[T]], object],
    reading: Reading,
) -> Generator:
    """Yield batches in order, each read in pieces by threads.

    Memory is that of the batches of all pieces in work, and of two spare batches.

    Args:
        shapes: Height, width and channels of the images of each batch.
        largest: Bytes of the largest image.
        local: Local rows of a batch.
        read: Reads a piece, in a thread.
        finish: Called as finish(number, images, results of its pieces), in the caller's thread.
        reading: Threads and memory.
    """
    step = max(1, reading.piece_bytes // largest)
    ahead = min(_MOST, max(1, reading.memory_bytes // (min(step, local) * largest)))
    buffers = Buffers()
    waiting: collections.deque[Batch] = collections.deque()

    def pieces() -> Iterator[Piece]:
        for number, shape in enumerate(shapes):
            batch = Batch(buffers, (local, *shape))
            waiting.append(batch)
            for first in range(0, local, step):
                yield Piece(number, first, min(first + step, local), batch)

    results = in_threads(read, pieces(), min(reading.threads, ahead), ahead)
    with contextlib.closing(results):
        for number in itertools.count():
            parts = list(itertools.islice(results, -(-local // step)))
            if not parts:
                return
            made = finish(number, waiting.popleft().images, parts)
            del parts  # so that the memory is free once the caller has dropped the batch
            yield made
            del made


class Buffers:
    """Arrays whose memory is reused when nothing refers to them or to a view of them.

    A new array costs as much as a copy, since the kernel clears its pages. The two arrays released
    last are kept.
    """

    def __init__(self) -> None:
        self._free: collections.deque[np.ndarray] = collections.deque(maxlen=_SPARE)

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


def _joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    return None if parts[0] is None else np.concatenate(parts)


def _check_rows(batch: int, rows: tuple[int, int]) -> None:
    """Raise a ConfigError unless `rows` is a part of `batch`."""
    if not 0 <= rows[0] < rows[1] <= batch:
        raise ConfigError(
            f"rows [{rows[0]}, {rows[1]}) are not a part of a batch of {batch}; "
            f"use 0 <= first < last <= {batch}"
        )


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
