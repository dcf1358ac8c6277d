"""Our own input pipeline, as training runs it."""

from collections.abc import Callable, Iterator

from benchmarks.runner import Figures, timed
from benchmarks.workload import Absent, Workload
from largebatch.data import Augment, Microbatch, Order, Source, open_source, train_microbatches
from largebatch.data.openers import open_records
from largebatch.data.reading import Reading
from largebatch.data.records import Records
from largebatch.data.sources import SourceOptions, StoredSource

FLIP = Augment(flip=True)


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    source = training_split(work)
    # Far more positions than are ever read; the feed wants a whole number of microbatches.
    batches = microbatches(source, work, stop=work.batch << 20)
    return timed(_counted(batches), work)


def training_split(work: Workload) -> Source:
    """The training split of the workload's source."""
    return open_source(work.data, "train", options(work))


def options(work: Workload) -> SourceOptions:
    """What the source is to deliver."""
    return SourceOptions(image_size=work.image_size, data_dir=work.data_dir)


def records(work: Workload) -> Records:
    """The encoded pictures behind the source.

    Raises:
        Absent: It has none.
    """
    records = open_records(work.data, "train", options(work))
    if records is None:
        raise Absent(f"{work.data} stores no encoded pictures")
    return records


def order(source: Source, work: Workload) -> Order:
    """The order of the run."""
    return Order(seed=work.seed, examples=len(source))


def microbatches(source: Source, work: Workload, *, stop: int) -> Iterator[Microbatch]:
    """Shuffled, cropped and flipped microbatches of `work.batch` from position 0 to `stop`."""
    reading = Reading(
        threads=-(-work.threads // max(1, work.processes)),
        processes=work.processes,
        memory_bytes=work.memory_mib << 20,
    )
    return train_microbatches(
        source,
        order(source, work),
        FLIP,
        start=0,
        stop=stop,
        microbatch=work.batch,
        rows=(0, work.batch),
        reading=reading,
        crops="device" if isinstance(source, StoredSource) else "host",
    )


def _counted(batches: Iterator[Microbatch]) -> Iterator[int]:
    for batch in batches:
        yield len(batch.ids)
