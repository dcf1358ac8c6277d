"""What one competitor is given to do; travels to its process as JSON."""

import dataclasses
import json
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from largebatch.errors import DataError


class Absent(Exception):
    """A competitor cannot take part here; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What every kind of work has; the fields of the others are JSON's own types and tuples.

    Attributes:
        cores: Processor numbers to be pinned to; empty leaves that to the system.
        limit_s: Seconds that the competitor may take for an answer.
    """

    cores: tuple[int, ...] = ()
    limit_s: float = 3600.0

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the competitor's process beyond those of this one."""
        return {}

    def dumps(self) -> str:
        """As JSON."""
        kind = f"{type(self).__module__}:{type(self).__qualname__}"
        return json.dumps({"kind": kind} | dataclasses.asdict(self))


def loads(text: str) -> Any:
    """From `Task.dumps`."""
    read = json.loads(text)
    kind = pkgutil.resolve_name(read.pop("kind"))
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in read.items()})


@dataclasses.dataclass(frozen=True)
class Workload(Task):
    """A data set, what to make of it, and on which cores.

    Attributes:
        data: Specification of the source.
        data_dir: Where the sets of `tfds:` lie; empty is that source's default.
        image_size: Pixels a side of the result; 0 is the source's own.
        batch: Images of a batch.
        images: Images of a repeat, at least; whole batches are counted.
        seconds: Length of a repeat, at least: a fast pipeline's stock would else be what is timed.
        cores: As of `Task`; as many threads.
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
    cores: tuple[int, ...] = dataclasses.field(default=(0,), kw_only=True)
    processes: int = 0
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
