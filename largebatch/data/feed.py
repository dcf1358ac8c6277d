"""Microbatches of training and batches of evaluation, read ahead.

The rows are a function of the sample position and the seed: the number of processes, the size of a
microbatch, threads and the position of a resume do not change them.
"""

import contextlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from largebatch.data.assembly import assembled
from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.reading import Reading
from largebatch.data.rows import EvaluationRows, TrainRows
from largebatch.data.sources import Source
from largebatch.data.unreadable import Unreadable
from largebatch.data.views import View, square_views
from largebatch.errors import ConfigError


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
    centre: bool = False,
    unreadable: Unreadable | None = None,
) -> Generator[Microbatch]:
    """Return the microbatches at sample positions [start, stop), in order.

    Memory is about `reading.memory_bytes` and that of three local microbatches. See `read_ahead`
    for how to stop before the end.

    Args:
        source: The training split.
        order: The example at each position; it has the same number of examples.
        augment: Augmentation, with the seed of `order`.
        start: First sample position.
        stop: Sample position to stop before.
        microbatch: Global rows of a microbatch, G; must divide `stop - start`.
        rows: [first, last) of the G rows that this process loads.
        reading: Threads, processes and memory.
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
    if order.examples != len(source):
        raise ConfigError(
            f"order: expected {len(source)} examples of {source.name}, got {order.examples}"
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
    account = unreadable or Unreadable("train", len(source))
    drawn = TrainRows(source, order, augment, start, microbatch, rows, centre, account.limit)
    count = (stop - start) // microbatch
    names = [
        *(["erased"] if augment.erase else []),
        *(["mixtures"] if augment.mixes else []),
    ]
    wholes = assembled(drawn, count, rows[1] - rows[0], math.prod(drawn.shape(0)), reading)

    def microbatches() -> Generator[Microbatch]:
        with contextlib.closing(wholes):
            for index, (images, labels, ids, passed, *others) in enumerate(wholes):
                for row in np.flatnonzero(passed):
                    over = ids[row] - np.arange(passed[row], 0, -1)
                    account.add((over % len(source)).tolist(), source.explain)
                position = start + index * microbatch
                yield Microbatch(
                    images, labels, position, ids, **dict(zip(names, others, strict=True))
                )

    return microbatches()


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    rows: tuple[int, int],
    reading: Reading,
    views: Sequence[View] | None = None,
    unreadable: Unreadable | None = None,
) -> Generator[EvaluationBatch]:
    """Return batches with every example of a split once over all processes.

    Every process gets the same number of batches of the same shapes: ceil(n / batch) for each view
    of n examples, the last one padded. Memory and closing are as for `train_microbatches`.

    Args:
        source: The validation split.
        batch: Global rows of a batch.
        rows: [first, last) of the rows that this process loads.
        reading: Threads, processes and memory.
        views: The examples of each shape; None is all of them at the source's own.
        unreadable: Counts the undecodable examples, whose image is the mean grey; None raises at
            the first one.

    Returns:
        Iterator of batches. An exception of the source is raised unchanged by the `next` of its
        batch.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(batch, rows)
    if views is None:
        views = square_views(source)
    account = unreadable or Unreadable("validation", len(source))
    chosen = EvaluationRows(
        source,
        tuple(
            (view, first)
            for view in views
            for first in range(rows[0], len(view.ids) + rows[0], batch)
        ),
    )
    count = len(chosen.batches)
    largest = max((math.prod(chosen.shape(index)) for index in range(count)), default=1)
    wholes = assembled(chosen, count, rows[1] - rows[0], largest, reading)

    def batches() -> Generator[EvaluationBatch]:
        with contextlib.closing(wholes):
            for index, (images, labels, mask, grey) in enumerate(wholes):
                if grey.any():
                    ids = chosen.ids(index, 0, len(grey))
                    account.add(ids[grey[: len(ids)]].tolist(), source.explain)
                yield EvaluationBatch(images, labels, mask)

    return batches()


def _check_rows(batch: int, rows: tuple[int, int]) -> None:
    """Raise a ConfigError unless `rows` is a part of `batch`."""
    if not 0 <= rows[0] < rows[1] <= batch:
        raise ConfigError(
            f"rows [{rows[0]}, {rows[1]}) are not a part of a batch of {batch}; "
            f"use 0 <= first < last <= {batch}"
        )
