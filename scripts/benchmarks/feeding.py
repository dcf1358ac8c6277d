"""Input pipelines as competitors: their common work, the clock, and our pipeline."""

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.competitor import Figures, Work
from benchmarks.measure import PER_CPU, RATE
from largebatch.data import (
    Augment,
    Dataset,
    Order,
    Reading,
    SourceOptions,
    open_dataset,
    train_microbatches,
)

_FLIP = Augment(flip=True)
_FOR_EVER = 1 << 20  # batches, far more than are ever read


@dataclass(frozen=True)
class Workload(Work):
    """A dataset, the images to make of it, and the cores.

    Attributes:
        data: Specification of the source.
        data_dir: Folder of the sets of `tfds:`; empty is that source's default.
        image_size: Pixels a side of the result; 0 is the source's own.
        batch: Images of a batch.
        images: Images of a repeat, at least; complete batches are counted.
        seconds: Length of a repeat, at least: else the stock of a fast pipeline would be timed.
        cores: As of `Work`; a thread for each.
        memory_mib: MiB that ours may read ahead.
        seed: Seed of order and crops.
        flax_examples: Checkout of google/flax, for that peer.
    """

    data: str
    data_dir: str = ""
    image_size: int = 224
    batch: int = 128
    images: int = 1024
    seconds: float = 0.0
    cores: tuple[int, ...] = field(default=(0,), kw_only=True)
    memory_mib: int = 512
    seed: int = 0
    flax_examples: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """No device is needed."""
        return {"JAX_PLATFORMS": "cpu"}

    @property
    def threads(self) -> int:
        """One for each core."""
        return len(self.cores)

    def dataset(self) -> Dataset:
        """The training split."""
        options = SourceOptions(image_size=self.image_size, data_dir=self.data_dir)
        return open_dataset(self.data, "train", options)


def timed(batches: Iterator[int], work: Workload) -> Callable[[], Figures]:
    """The repeat of a pipeline that runs on; what it has in stock at the start is not counted.

    Args:
        batches: Yields, for ever, the number of images of each batch that is ready.
        work: Images and length of a repeat, at least.

    Returns:
        A function that takes a quarter of a repeat to empty the stock, then times complete batches.
    """

    def take(images: int, seconds: float) -> int:
        start, taken = time.perf_counter(), 0
        while not taken or taken < images or time.perf_counter() - start < seconds:
            taken += next(batches)
        return taken

    def repeat() -> Figures:
        take(work.images // 4, work.seconds / 4)
        # Those of other processes take long to look up: outside of what is timed.
        others, own, start = _other_cpu_s(), _own_cpu_s(), time.perf_counter()
        images = take(work.images, work.seconds)
        wall, own = time.perf_counter() - start, _own_cpu_s() - own
        return {RATE: images / wall, PER_CPU: images / (own + _other_cpu_s() - others)}

    return repeat


def _own_cpu_s() -> float:
    """Processor time so far of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _other_cpu_s() -> float:
    """Processor time so far of this session's other processes and their children that have ended.

    A competitor has a session of its own: the others are its descendants. Linux.
    """
    own, ticks = str(os.getpid()), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # the name may hold spaces
        except OSError:  # it has ended meanwhile
            continue
        if fields[3] == own and path.parent.name != own:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def ours(work: Workload) -> tuple[Callable[[], Figures], str]:
    """Our own pipeline, as training reads: shuffled, cropped and flipped."""
    dataset = work.dataset()
    reading = Reading(threads=work.threads, memory_bytes=work.memory_mib << 20)
    batches = train_microbatches(
        dataset,
        Order(seed=work.seed, examples=len(dataset)),
        _FLIP,
        start=0,
        stop=_FOR_EVER * work.batch,
        microbatch=work.batch,
        rows=(0, work.batch),
        reading=reading,
    )
    return timed((len(batch.ids) for batch in batches), work), ""
