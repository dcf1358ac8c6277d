"""Microbatches of a run and batches of an evaluation, read ahead.

What is fed is a function of the sample position and, for the random choices, of the seed: how many
processes share a microbatch, how large it is, who reads it and where a run resumed change nothing.
"""

import contextlib
import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.reading import Reading, read_ahead
from largebatch.data.sources import CroppingSource, Source, StoredSource, stored_source
from largebatch.data.views import View
from largebatch.errors import ConfigError

Where = Literal["host", "device"]


@dataclass(frozen=True, eq=False)
class Microbatch:
    """This process's rows of one training microbatch.

    Attributes:
        images: uint8 (rows, H, W, C), not normalised; augmented unless there are `crops`.
        labels: int32 (rows,).
        position: Sample position of the microbatch's first global row; the same on every process.
        ids: int64 (rows,), the example of each row.
        crops: None, or int32 (rows, 5) that the device is to cut out: top, left, height and width
            of a box of the image, and 1 if mirrored.
    """

    images: np.ndarray
    labels: np.ndarray
    position: int
    ids: np.ndarray
    crops: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class EvaluationBatch:
    """This process's rows of one evaluation batch.

    Attributes:
        images: uint8 (rows, H, W, C), not normalised; zeros where there is no example.
        labels: int32 (rows,); 0 where there is no example.
        mask: float32 (rows,); 1 for an example, 0 for padding.
        shape: Height and width at which the images are seen, by the device if there are `crops`.
        crops: As of `Microbatch`; one pixel where there is no example.
    """

    images: np.ndarray
    labels: np.ndarray
    mask: np.ndarray
    shape: tuple[int, int]
    crops: np.ndarray | None = None


# What a thread reads at a time: rows of several arrays, as many as of the first.
_Piece = tuple[np.ndarray, ...]


def train_microbatches(
    source: Source,
    order: Order,
    augment: Augment,
    *,
    start: int,
    stop: int,
    microbatch: int,
    rows: tuple[int, int],
    reading: Reading,
    crops: Where = "host",
) -> Generator[Microbatch]:
    """The microbatches at sample positions [start, stop), in order.

    Memory is `reading.memory_bytes` and, unless a thread reads a whole microbatch at a time, one
    local microbatch being put together. See `read_ahead` for how to stop before the end.

    Args:
        source: The training split.
        order: Which example stands at which position; of the same number of examples.
        augment: Augmentation, drawn from `order.seed`.
        start: First sample position.
        stop: Sample position to stop before.
        microbatch: Global rows of a microbatch, G; must divide `stop - start`.
        rows: [first, last) of the G rows that this process loads.
        reading: Threads, processes and memory.
        crops: Who cuts out the random crops of a `StoredSource`.

    Returns:
        Iterator of (stop - start) / G microbatches. An error of the source is raised by the `next`
        whose microbatch it spoils, as the exception it is.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(microbatch, rows)
    stored = stored_source(source) if crops == "device" else None
    if stored and augment.shift:
        raise ConfigError(
            f"data.shift is {augment.shift}, which data.crops=device leaves out; set it to 0"
        )
    if order.examples != len(source):
        raise ConfigError(
            f"order has {order.examples} examples but {source.name} has {len(source)}; "
            "make the order from the source's length"
        )
    if not 0 <= start <= stop or (stop - start) % microbatch:
        raise ConfigError(
            f"sample positions {start} to {stop} are not a whole number of microbatches of "
            f"{microbatch}; stop at start + k·{microbatch}"
        )
    row_bytes = math.prod(_stored_shape(stored) if stored else source.image_shape)
    cut = reading.pieces(rows, row_bytes)
    load = _TrainPieces(source, stored, order, augment, start, microbatch, cut)
    count = (stop - start) // microbatch
    pieces = read_ahead(load, count * len(cut), (cut[0][1] - cut[0][0]) * row_bytes, reading)

    def microbatches() -> Generator[Microbatch]:
        counts = itertools.repeat(len(cut), count)
        with contextlib.closing(_whole(pieces, counts, rows)) as wholes:
            for index, (ids, images, labels, *drawn) in enumerate(wholes):
                position = start + index * microbatch
                yield Microbatch(images, labels, position, ids, *drawn)

    return microbatches()


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    rows: tuple[int, int],
    reading: Reading,
    crops: Where = "host",
    views: Sequence[View] | None = None,
) -> Generator[EvaluationBatch]:
    """Every example of a split once over all processes.

    Every process gets as many batches of the same shapes: ceil(n / batch) for each view of n
    examples, of which the last is padded. Memory and closing are as for `train_microbatches`.

    Args:
        source: The validation split.
        batch: Global rows of a batch.
        rows: [first, last) of the rows that this process loads.
        reading: Threads, processes and memory.
        crops: Who cuts out the centre of a `StoredSource`.
        views: Which examples are seen at which shape; None is all of them at the source's own.

    Returns:
        Iterator of batches. An error of the source is raised by the `next` whose batch it spoils,
        as the exception it is.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(batch, rows)
    stored = stored_source(source) if crops == "device" else None
    if views is None:
        views = [View(source.image_shape[:2], np.arange(len(source), dtype=np.int64))]
    tasks, counts, shapes, largest = [], [], [], 1
    for view in views:
        shape = _stored_shape(stored) if stored else (*view.shape, source.image_shape[2])
        cut = reading.pieces(rows, math.prod(shape))
        largest = max(largest, (cut[0][1] - cut[0][0]) * math.prod(shape))
        for first in range(0, len(view.ids), batch):
            tasks += [(view, shape, first + a, first + b) for a, b in cut]
            counts.append(len(cut))
            shapes.append(view.shape)
    load = _EvaluationPieces(source, stored, tuple(tasks))
    pieces = read_ahead(load, len(tasks), largest, reading)

    def batches() -> Generator[EvaluationBatch]:
        with contextlib.closing(_whole(pieces, counts, rows)) as wholes:
            for (images, labels, mask, *drawn), shape in zip(wholes, shapes, strict=True):
                yield EvaluationBatch(images, labels, mask, shape, *drawn)

    return batches()


@dataclass(frozen=True)
class _TrainPieces:
    """Reads piece after piece of the local rows of a run's microbatches; can be pickled."""

    source: Source
    stored: StoredSource | None
    order: Order
    augment: Augment
    start: int
    microbatch: int
    cut: tuple[tuple[int, int], ...]

    def __call__(self, index: int) -> _Piece:
        microbatch, piece = divmod(index, len(self.cut))
        position = self.start + microbatch * self.microbatch
        first, last = self.cut[piece]
        positions = np.arange(position + first, position + last, dtype=np.int64)
        ids, epochs = self.order.ids(positions), self.order.epochs(positions)
        drawn = {"seed": self.order.seed, "epochs": epochs}
        if self.stored is not None:
            images, labels, boxes = self.stored.read_stored(ids, **drawn)
            flips = self.augment.flips(**drawn, ids=ids)
            return ids, images, labels, np.column_stack([boxes, flips]).astype(np.int32)
        if isinstance(self.source, CroppingSource):
            images, labels = self.source.read_crops(ids, **drawn)
        else:
            images, labels = self.source.read(ids)
        return ids, self.augment(images, **drawn, ids=ids), labels


@dataclass(frozen=True)
class _EvaluationPieces:
    """Reads pieces of evaluation batches; can be pickled.

    Attributes:
        source: What is read.
        stored: The same where the device cuts out the centre.
        tasks: View, shape of the stored images, first and last row of the view for each piece.
    """

    source: Source
    stored: StoredSource | None
    tasks: tuple[tuple[View, tuple[int, int, int], int, int], ...]

    def __call__(self, index: int) -> _Piece:
        view, shape, first, last = self.tasks[index]
        ids = view.ids[first:last]  # the last batch may leave a process nothing but padding
        images = np.zeros((last - first, *shape), np.uint8)
        labels = np.zeros(last - first, np.int32)
        mask = np.zeros(last - first, np.float32)
        mask[: len(ids)] = 1
        if self.stored is not None:
            crops = np.tile(np.array([0, 0, 1, 1, 0], np.int32), (last - first, 1))
            if len(ids):
                read = self.stored.read_stored_centres(ids, view.shape)
                images[: len(ids)], labels[: len(ids)], crops[: len(ids), :4] = read
            return images, labels, mask, crops
        if len(ids):
            own = view.shape == self.source.image_shape[:2]
            read = self.source.read(ids) if own else self.source.read_centres(ids, view.shape)
            images[: len(ids)], labels[: len(ids)] = read
        return images, labels, mask


def _whole(
    pieces: Iterator[_Piece], counts: Iterable[int], rows: tuple[int, int]
) -> Generator[_Piece]:
    """Batches put together from their pieces.

    Args:
        pieces: Of all batches, in order; closed at the end.
        counts: Pieces of each batch.
        rows: [first, last) of the rows of each batch.

    Yields:
        The arrays of each batch.
    """
    try:
        for count in counts:
            piece = next(pieces)
            if count == 1:
                yield piece
                continue
            whole = tuple(
                np.empty((rows[1] - rows[0], *array.shape[1:]), array.dtype) for array in piece
            )
            # Copied as they come, so that a batch is never held twice.
            filled = 0
            for left in reversed(range(count)):
                for array, part in zip(whole, piece, strict=True):
                    array[filled : filled + len(part)] = part
                filled += len(piece[0])
                piece = next(pieces) if left else None
            yield whole
    finally:
        pieces.close()


def _stored_shape(source: StoredSource) -> tuple[int, int, int]:
    return (source.stored_size, source.stored_size, source.image_shape[2])


def _check_rows(batch: int, rows: tuple[int, int]) -> None:
    """Raises a ConfigError unless `rows` is a part of `batch`."""
    if not 0 <= rows[0] < rows[1] <= batch:
        raise ConfigError(
            f"rows [{rows[0]}, {rows[1]}) are no part of a batch of {batch}; "
            f"give 0 <= first < last <= {batch}"
        )
