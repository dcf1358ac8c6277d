"""The input pipeline: images per second and per processor second, beside its peers.

    input --make_set /data/bench --photos photographs.tar
    input --data tfds:photos:full --data_dir /data/bench --peer flax,tfdata,torchvision
          --flax_examples ~/flax/examples --json records/input.json

Every competitor is a process of its own, pinned to the same cores, warmed up by one repeat, and
stopped while another one is measured. With --config it also reports what a recipe needs of a host.
"""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import input_work, photo_set
from benchmarks.competitor import Absent, Competitor, Figures, Race, compete
from benchmarks.input_work import Workload
from benchmarks.measure import PER_CPU, PER_HOST, RATE, Result, chosen, require_positive
from benchmarks.peers import pipelines
from largebatch.config import Config, durations, load
from largebatch.data.open import open_source
from largebatch.errors import ConfigError
from largebatch.tools.doctor.need import (
    Need,
    advice,
    cores_needed,
    hosts_needed,
    need_in_time,
    need_of_devices,
)

PEERS = {
    "flax": pipelines.flax,
    "tfdata": pipelines.tfdata,
    "torchvision": pipelines.torchvision,
}
_STAGES = "stages"
_PER_IMAGE = "µs of CPU per image"
_GOALS = {("flax", PER_CPU): 2.0}
_DECODED_US = 60.0
_OVERHEAD = 0.10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--data", help="source to read, as data.source")
    add("--data_dir", default="", help="folder of the sets of tfds:")
    add("--image_size", type=int, default=224, help="pixels a side (224)")
    add("--threads", default="1,all", help="numbers of cores, comma-separated (1,all)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add("--flax_examples", default="", help="checkout of google/flax, for its example's pipeline")
    add("--images", type=int, default=1024, help="images of a repeat for each core (1,024)")
    add("--seconds", type=float, default=2.0, help="length of a repeat, at least (2)")
    add("--batch", type=int, default=128, help="images of a batch (128)")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--processes", type=int, default=0, help="worker processes of ours; 0 is threads alone (0)")
    add("--memory_mib", type=int, default=512, help="MiB that ours may read ahead (512)")
    add("--make_set", type=Path, help="write a set to measure with into this folder")
    add("--photos", type=Path, help="--make_set: tar or folder of JPEG photographs")
    add("--set_images", type=int, default=1000, help="--make_set: examples (1,000)")
    add("--config", type=Path, help="recipe whose need is to be compared")
    add("--hosts", type=int, default=1, help="--config: hosts that share the work (1)")
    add("--target_s", type=float, help="--config: seconds for the training")
    add("--device_images_per_s", type=float, help="--config: images/s that one device trains")
    add("--devices_per_host", type=int, help="--config: devices of a host")
    add("--examples", type=int, help="--config: training examples; else from the recipe's source")


def run(flags: argparse.Namespace) -> list[Result]:
    """Make a set if asked to, then measure.

    Raises:
        ConfigError: Options that do not fit each other.
        DataError: The source cannot be opened.
    """
    peers = check(flags)
    if flags.make_set:
        make_set(flags)
    if not flags.data:
        return []
    need = need_of(flags) if flags.config else None  # its mistakes come before the long work
    same = ("data", "data_dir", "image_size", "batch", "seconds", "processes", "memory_mib")
    base = Workload(flax_examples=flags.flax_examples, **{n: getattr(flags, n) for n in same})
    results: list[Result] = []
    races: dict[int, Race] = {}
    for cores in core_sets(flags.threads):
        work = replace(base, cores=cores, images=flags.images * len(cores))
        tasks = {"ours": (input_work.ours, work)} | {name: (PEERS[name], work) for name in peers}
        if len(cores) == 1:
            tasks[_STAGES] = (input_work.stages, work)
        races[len(cores)] = race = compete(tasks, flags.repeats)
        results += throughput(work, race)
    if need:
        most = max(races)
        results += diagnosis(need, median(races[most].column(RATE)), most)
    return results


def check(flags: argparse.Namespace) -> list[str]:
    """The peers; raises a ConfigError unless the options fit each other."""
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("benchmark input pins its processes to cores: run it on Linux")
    if bool(flags.make_set) != bool(flags.photos):
        raise ConfigError("--make_set and --photos need each other: the folder, and its images")
    if not flags.data and not flags.make_set:
        raise ConfigError("--data is not given: name a source, or write one with --make_set")
    require_positive(flags, "images", "batch", "repeats", "set_images", "hosts")
    return chosen("--peer", flags.peer, PEERS)


def make_set(flags: argparse.Namespace) -> None:
    """Write a set, also as TFRecord where TensorFlow is installed."""
    for data in photo_set.make_set(flags.make_set, flags.photos, flags.set_images):
        print(f"--data {data} --data_dir {flags.make_set}: {flags.set_images:,} images")
        try:
            work = Workload(data, str(flags.make_set))
            Competitor(pipelines.copy_as_tfrecords, work).close()
        except Absent as reason:
            print(f"no TFRecord copy, so no peers on tf.data: {reason}")


def core_sets(text: str) -> list[tuple[int, ...]]:
    """The cores of each measurement, e.g. those of `1,all`; each set once.

    Raises:
        ConfigError: Not a number of cores that this process may use.
    """
    usable = sorted(os.sched_getaffinity(0))
    sets = {}
    for word in text.split(","):
        number = len(usable) if word == "all" else int(word) if word.isdecimal() else 0
        if not 0 < number <= len(usable):
            raise ConfigError(f"--threads {word}: expected 1 to {len(usable)} cores, or all")
        sets[tuple(usable[:number])] = None
    return list(sets)


def throughput(work: Workload, race: Race) -> list[Result]:
    """Ours, then beside each peer; on one core, the stages."""
    place = f"{work.threads} core{'s' if work.threads > 1 else ''}"
    spent, absent = race.figures.get(_STAGES), dict(race.absent)
    missing = absent.pop(_STAGES, "")
    figures = {name: found for name, found in race.figures.items() if name != _STAGES}
    results = Race(figures, absent, race.about).results(place, _GOALS)
    us = tuple(1e6 / value for value in race.column(PER_CPU))
    if work.data.startswith("decoded:"):
        results.append(Result(f"{place}: host cost", _PER_IMAGE, us, goal=_DECODED_US))
    if missing:
        results.append(Result(f"{place}: stages", _PER_IMAGE, absent=missing))
    return results + (breakdown(place, us, spent) if spent else [])


def breakdown(place: str, per_image: Sequence[float], stages: Sequence[Figures]) -> list[Result]:
    """The stages, and what the product takes beyond reading, decoding and resizing.

    Args:
        place: Cores, for the names.
        per_image: Processor time of an image in the product, µs, for each repeat.
        stages: That of each stage, likewise.
    """
    results = []
    for stage in stages[0]:
        us = tuple(spent[stage] for spent in stages)
        results.append(Result(f"{place}: {stage}", _PER_IMAGE, us))
    beyond = []
    for total, spent in zip(per_image, stages, strict=True):
        raw = spent["header"] + spent["decode"]
        beyond.append((total - spent["read"] - raw) / raw)
    name, unit = f"{place}: order and bookkeeping", "share of decode + resize"
    note = "all that the product takes beyond read, header, decode and resize"
    return [*results, Result(name, unit, tuple(beyond), goal=_OVERHEAD, note=note)]


def diagnosis(need: Need, given: float, cores: int) -> list[Result]:
    """The rate against the need, and what to change.

    Args:
        need: Of each host.
        given: Images/s that this host gives on all its cores.
        cores: Their number.
    """
    note = f"{need.because}; {advice(need, given, cores)}"
    name, least = "doctor: this host, this data set", cores_needed(need, given, cores)
    results = [
        Result(name, PER_HOST, (given,), goal=need.images_per_s, note=note),
        Result("doctor: cores per host that would do", "cores", (least,), goal=cores),
    ]
    if need.divisible:
        least = hosts_needed(need, given)
        results.append(Result("doctor: hosts that would do", "hosts", (least,), goal=need.hosts))
    return results


def need_of(flags: argparse.Namespace) -> Need:
    """The need that --config and its companions describe.

    Raises:
        ConfigError: Neither a time nor a device's rate is given, or both, or one is not positive.
        DataError: --examples is not given and the recipe's source cannot be opened.
    """
    device = (flags.device_images_per_s, flags.devices_per_host)
    for name in ("target_s", "device_images_per_s", "devices_per_host", "examples"):
        value = getattr(flags, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name}: expected above 0, got {value}")
    if (flags.target_s is None) == (device == (None, None)) or device.count(None) == 1:
        raise ConfigError(
            "--config: give either --target_s, or --device_images_per_s and --devices_per_host"
        )
    if flags.target_s is None:
        return need_of_devices(*device, flags.hosts)
    config = load(flags.config)
    samples = training_samples(config, flags.examples or len(open_source(config, "train")))
    return need_in_time(samples, flags.target_s, flags.hosts)


def training_samples(config: Config, examples: int) -> int:
    """Training images of the run, in complete steps."""
    batch = config.batch.workers * config.batch.images_per_worker
    epoch = durations.epoch_samples(examples, batch, config.data.epoch_end)
    length = durations.samples(
        config.schedule.length, "schedule.length", per_step=batch, per_epoch=epoch
    )
    return math.ceil(length / batch) * batch
