"""What one competitor is given to do; travels to its process as JSON."""

import dataclasses
import json
import re
from pathlib import Path

from largebatch.errors import DataError


class Absent(Exception):
    """A competitor cannot take part here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A data set, what to make of it, and on which cores.

    Attributes:
        data: Specification of the source.
        data_dir: Where the sets of `tfds:` lie; empty is that source's default.
        image_size: Pixels a side of the result; 0 is the source's own.
        batch: Images of a batch.
        images: Images of a repeat, at least; whole batches are counted.
        seconds: Length of a repeat, at least: a fast pipeline's stock would else be what is timed.
        cores: Processor numbers to be pinned to; as many threads.
        processes: Worker processes of ours, which share the threads; 0 reads in one process.
        memory_mib: MiB that ours may read ahead.
        seed: Seed of order and crops.
        flax_examples: Folder of Flax's examples, for that peer.
    """

    data: str
    data_dir: str = ""
    image_size: int = 224
    batch: int = 128
    images: int = 1024
    seconds: float = 0.0
    cores: tuple[int, ...] = (0,)
    processes: int = 0
    memory_mib: int = 512
    seed: int = 0
    flax_examples: str = ""

    @property
    def threads(self) -> int:
        """One for each core."""
        return len(self.cores)

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str) -> "Workload":
        """From `dumps`."""
        read = json.loads(text)
        return cls(**read | {"cores": tuple(read["cores"])})


def tfds_directory(work: Workload) -> Path:
    """Folder of the newest version of the `tfds:NAME[:CONFIG]` set.

    Raises:
        Absent: The source is no TFDS set.
        DataError: It is, but there is none under `data_dir`.
    """
    scheme, _, name = work.data.partition(":")
    if scheme != "tfds":
        raise Absent(f"reads TFDS sets only, not {work.data!r}")
    data_dir = Path(work.data_dir or "~/tensorflow_datasets").expanduser()
    found = list(data_dir.joinpath(*re.split("[:/]", name)).glob("*.*.*/dataset_info.json"))
    if not found:
        raise DataError(f"--data {work.data}: no prepared version under {data_dir}; see --data_dir")
    return max(found, key=lambda path: [int(n) for n in path.parent.name.split(".")]).parent


def tfrecords(work: Workload) -> list[Path]:
    """The TFRecord shards of the training split, in order.

    Raises:
        Absent: There are none: tf.data cannot read ArrayRecord.
    """
    directory = tfds_directory(work)
    found = sorted(directory.glob("*-train.tfrecord-*"))
    if not found:
        raise Absent(
            f"{directory} has no TFRecord shards, and tf.data reads no ArrayRecord; "
            "make a set that has both with --make_set"
        )
    return found
