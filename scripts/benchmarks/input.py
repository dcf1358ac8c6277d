"""The input pipeline: images per second and per processor second, beside its peers.

    input --make_set /data/bench --photos photographs.tar
    input --data tfds:photos:full --data_dir /data/bench --peer flax,tfdata,torchvision
          --flax_examples ~/flax/examples --json records/input.json

Every competitor is a process of its own, pinned to the same cores, warmed up by one repeat, and
stopped while it is not its turn. With --config it also says what a recipe needs of a host.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import doctor
from benchmarks.fresh import alternatives, first_batch, memory
from benchmarks.measure import Result
from benchmarks.recipe import need_of
from benchmarks.throughput import PEERS, PER_CPU, compete, rates, throughput
from benchmarks.workload import Workload
from largebatch.errors import ConfigError, did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--data", help="source to read, as data.source")
    add("--data_dir", default="", help="where the sets of tfds: lie")
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
    add("--microbatch", type=int, default=1280, help="of the measurement of memory (1,280)")
    add("--make_set", type=Path, help="write a set to measure with into this folder")
    add("--photos", type=Path, help="--make_set: tar or folder of JPEG photographs")
    add("--set_images", type=int, default=1000, help="--make_set: how many examples (1,000)")
    add("--config", type=Path, help="recipe whose need is to be compared")
    add("--hosts", type=int, default=1, help="--config: hosts that share the work (1)")
    add("--target_s", type=float, help="--config: seconds the training is to take")
    add("--device_images_per_s", type=float, help="--config: what one device trains")
    add("--devices_per_host", type=int, help="--config: devices of a host")
    add("--examples", type=int, help="--config: training examples; else from the recipe's source")


def run(flags: argparse.Namespace) -> list[Result]:
    """Makes a set if asked to, then measures what is asked for.

    Raises:
        ConfigError: Options that do not fit each other.
        DataError: The source cannot be opened.
    """
    peers = [name for name in flags.peer.split(",") if name]
    check(flags, peers)
    if flags.make_set:
        from benchmarks.photo_set import make_set

        print("\n".join(make_set(flags.make_set, flags.photos, flags.set_images)))
    if not flags.data:
        return []
    need = need_of(flags) if flags.config else None  # its mistakes are told before the long work
    base = Workload(
        data=flags.data,
        data_dir=flags.data_dir,
        image_size=flags.image_size,
        batch=flags.batch,
        seconds=flags.seconds,
        processes=flags.processes,
        memory_mib=flags.memory_mib,
        flax_examples=flags.flax_examples,
    )
    results: list[Result] = []
    ours = {}
    for cores in core_sets(flags.threads):
        work = replace(base, cores=cores, images=flags.images * len(cores))
        race = compete(work, peers, flags.repeats)
        results += throughput(work, peers, race)
        ours[work] = rates(race.figures["ours"])
    most = max(ours, key=lambda work: work.threads)
    results += first_batch(most, flags.repeats)
    results += memory(replace(most, batch=flags.microbatch, images=8 * flags.microbatch))
    if need:
        rate = median(ours[most]["images/s"])
        total_us = median(1e6 / value for value in ours[most][PER_CPU])
        one_core = replace(most, cores=most.cores[:1])
        instead = alternatives(one_core, flags.repeats, rate, total_us)
        results += doctor.diagnosis(need, rate, most.threads, instead)
    return results


def check(flags: argparse.Namespace, peers: Sequence[str]) -> None:
    """Raises a ConfigError unless the options fit each other."""
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("benchmark input pins its processes to cores: run it on Linux")
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"--peer {name} is unknown; {did_you_mean(name, PEERS)}")
    if bool(flags.make_set) != bool(flags.photos):
        raise ConfigError("--make_set and --photos go together: where to write it, and of what")
    if not flags.data and not flags.make_set:
        raise ConfigError("--data is not given: name a source, or write one with --make_set")
    for name in ("images", "batch", "repeats", "microbatch", "set_images", "hosts"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name} is {getattr(flags, name)}; give 1 or more")


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
            raise ConfigError(f"--threads {word}: give 1 to {len(usable)} cores, or all")
        sets[tuple(usable[:number])] = None
    return list(sets)
