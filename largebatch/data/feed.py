"""Microbatches of a run and batches of an evaluation, read ahead.

What is fed is a function of the sample position and, for the random choices, of the seed: how many
processes share a microbatch, how large it is, who reads it and where a run resumed change nothing.
"""

import contextlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from largebatch.data.assembly import assembled
from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.reading import Reading
from largebatch.data.rows import EvaluationRows, TrainRows
from largebatch.data.sources import Source, stored_source
from largebatch.data.unreadable import Unreadable
from largebatch.data.views import View, square_views
from largebatch.errors import ConfigError

Where = Literal["host", "device"]


@dataclass(frozen=True, eq=False)
class Microbatch:
    """This process's rows of one training microbatch.

    Attributes:
        images: uint8 (rows, H, W, C), not normalised; augmented unless there are `crops`.
        labels: int32 (rows,).
        position: Sample position of the microbatch's first global row; the same on every process.
        ids: int64 (rows,), the example that each row shows.
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
    centre: bool = False,
    unreadable: Unreadable | None = None,
) -> Generator[Microbatch]:
    """The microbatches at sample positions [start, stop), in order.

    Memory is about `reading.memory_bytes` and that of three local microbatches. See `read_ahead`
    for how to stop before the end.

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
        centre: Whether training sees what evaluation does instead of random crops.
        unreadable: Accounts for the examples that cannot be decoded, each of which the next one
            that can replaces; None ends with the first.

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
    account = unreadable or Unreadable("train", len(source))
    drawn = TrainRows(
        source, stored, order, augment, start, microbatch, rows, centre, account.limit
    )
    count = (stop - start) // microbatch
    wholes = assembled(drawn, count, rows[1] - rows[0], math.prod(drawn.shape(0)), reading)

    def microbatches() -> Generator[Microbatch]:
        with contextlib.closing(wholes):
            for index, (images, labels, ids, passed, *crops) in enumerate(wholes):
                for row in np.flatnonzero(passed):
                    over = ids[row] - np.arange(passed[row], 0, -1)
                    account.add((over % len(source)).tolist(), source.explain)
                yield Microbatch(images, labels, start + index * microbatch, ids, *crops)

    return microbatches()


def evaluation_batches(
    source: Source,
    *,
    batch: int,
    rows: tuple[int, int],
    reading: Reading,
    crops: Where = "host",
    views: Sequence[View] | None = None,
    unreadable: Unreadable | None = None,
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
        unreadable: Accounts for the examples that cannot be decoded, each of which is seen as the
            mean grey; None ends with the first.

    Returns:
        Iterator of batches. An error of the source is raised by the `next` whose batch it spoils,
        as the exception it is.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_rows(batch, rows)
    stored = stored_source(source) if crops == "device" else None
    if views is None:
        views = square_views(source)
    account = unreadable or Unreadable("validation", len(source))
    chosen = EvaluationRows(
        source,
        stored,
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
            for index, (images, labels, mask, grey, *crops) in enumerate(wholes):
                if grey.any():
                    ids = chosen.ids(index, 0, len(grey))
                    account.add(ids[grey[: len(ids)]].tolist(), source.explain)
                yield EvaluationBatch(images, labels, mask, chosen.batches[index][0].shape, *crops)

    return batches()


def _check_rows(batch: int, rows: tuple[int, int]) -> None:
    """Raises a ConfigError unless `rows` is a part of `batch`."""
    if not 0 <= rows[0] < rows[1] <= batch:
        raise ConfigError(
            f"rows [{rows[0]}, {rows[1]}) are no part of a batch of {batch}; "
            f"give 0 <= first < last <= {batch}"
        )
