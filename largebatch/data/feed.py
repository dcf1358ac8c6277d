"""Microbatches of a run and batches of an evaluation, read ahead by threads.

What is fed is a function of the sample position and, for the random choices, of the seed: how many
processes share a microbatch, how large it is and where a run resumed change nothing.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import grain
import numpy as np

from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.sources import CroppingSource, Source
from largebatch.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Microbatch:
    """This process's rows of one training microbatch.

    Attributes:
        images: uint8 (rows, H, W, C), augmented, not normalised.
        labels: int32 (rows,).
        position: Sample position of the microbatch's first global row; the same on every process.
        ids: int64 (rows,), the example of each row.
    """

    images: np.ndarray
    labels: np.ndarray
    position: int
    ids: np.ndarray


@dataclass(frozen=True, eq=False)
class EvaluationBatch:
    """This process's rows of one evaluation batch.

    Attributes:
        images: uint8 (rows, H, W, C), not normalised; zeros where there is no example.
        labels: int32 (rows,); 0 where there is no example.
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
    threads: int,
    prefetch: int,
) -> Generator[Microbatch]:
    """The microbatches at sample positions [start, stop), in order.

    One thread loads one whole microbatch, so at most `prefetch` threads are busy, and the memory is
    that of `prefetch + 1` local microbatches. Reading begins at the first `next`. To stop before
    the end, close the iterator (`close()`, or drop the last reference): what is queued is cancelled
    and each thread ends with the microbatch it has begun. Left open, it delays the end of the
    process by what is queued.

    Args:
        source: The training split.
        order: Which example stands at which position; of the same number of examples.
        augment: Augmentation, drawn from `order.seed`.
        start: First sample position.
        stop: Sample position to stop before.
        microbatch: Global rows of a microbatch, G; must divide `stop - start`.
        rows: [first, last) of the G rows that this process loads.
        threads: Threads that read; 0 reads in the caller's thread.
        prefetch: Microbatches read ahead; 0 reads in the caller's thread.

    Returns:
        Iterator of (stop - start) / G microbatches. An error of the source is raised by the `next`
        whose microbatch it spoils, as the exception it is.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_feed(microbatch, rows, threads, prefetch)
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

    def load(index: int) -> Microbatch:
        position = start + index * microbatch
        positions = np.arange(position + rows[0], position + rows[1], dtype=np.int64)
        ids, epochs = order.ids(positions), order.epochs(positions)
        if isinstance(source, CroppingSource):
            images, labels = source.read_crops(ids, seed=order.seed, epochs=epochs)
        else:
            images, labels = source.read(ids)
        images = augment(images, seed=order.seed, epochs=epochs, ids=ids)
        return Microbatch(images=images, labels=labels, position=position, ids=ids)

    return _read_ahead(load, (stop - start) // microbatch, threads, prefetch)


def evaluation_batches(
    source: Source, *, batch: int, rows: tuple[int, int], threads: int, prefetch: int
) -> Generator[EvaluationBatch]:
    """Every example of a split once over all processes, in index order.

    Every process gets ceil(len / batch) batches, of which the last is padded. Threads, memory and
    closing are as for `train_microbatches`.

    Args:
        source: The validation split.
        batch: Global rows of a batch.
        rows: [first, last) of the rows that this process loads.
        threads: Threads that read; 0 reads in the caller's thread.
        prefetch: Batches read ahead; 0 reads in the caller's thread.

    Returns:
        Iterator of batches. An error of the source is raised by the `next` whose batch it spoils,
        as the exception it is.

    Raises:
        ConfigError: The numbers do not fit each other; raised by the call, not by `next`.
    """
    _check_feed(batch, rows, threads, prefetch)

    def load(index: int) -> EvaluationBatch:
        first = index * batch + rows[0]
        ids = np.arange(first, min(first + rows[1] - rows[0], len(source)), dtype=np.int64)
        width = rows[1] - rows[0]
        images = np.zeros((width, *source.image_shape), np.uint8)
        labels = np.zeros(width, np.int32)
        mask = np.zeros(width, np.float32)
        if ids.size:  # the last batch may leave a process nothing but padding
            images[: ids.size], labels[: ids.size] = source.read(ids)
            mask[: ids.size] = 1
        return EvaluationBatch(images=images, labels=labels, mask=mask)

    return _read_ahead(load, -(-len(source) // batch), threads, prefetch)


def _check_feed(batch: int, rows: tuple[int, int], threads: int, prefetch: int) -> None:
    """Raises a ConfigError unless `rows` is a part of `batch` and the rest is not negative."""
    if not 0 <= rows[0] < rows[1] <= batch:
        raise ConfigError(
            f"rows [{rows[0]}, {rows[1]}) are no part of a batch of {batch}; "
            f"give 0 <= first < last <= {batch}"
        )
    for field, value in (("threads", threads), ("prefetch", prefetch)):
        if value < 0:
            raise ConfigError(f"data.{field} is {value}; give 0 or more")


def _read_ahead(load: Callable[[int], T], count: int, threads: int, prefetch: int) -> Generator[T]:
    """Yields load(0) to load(count - 1) in order, `prefetch` of them in hand or under way.

    Args:
        load: Called once per index, in any thread.
        count: How many; 0 yields nothing.
        threads: At most this many calls at once.
        prefetch: Greatest number of elements read but not taken.

    Yields:
        What `load` returns.
    """
    # Threads beyond the buffer would only idle, and Grain warns of them.
    options = grain.ReadOptions(num_threads=min(threads, prefetch), prefetch_buffer_size=prefetch)
    iterator = iter(grain.MapDataset.range(count).map(load).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
