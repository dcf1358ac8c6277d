"""The input pipeline against its peers: images per second and per CPU-second.

    input --data tfds:imagenette --data_dir /data --peer flax,dali --flax_examples ~/flax/examples
    input --data arrayrecord:/data/a --versus tfrecord:/data/t --versus webdataset:/data/w

Every competitor is a separate process, pinned to the same cores, warmed up by one repeat, and
stopped while another one is measured. Peers read a TFRecord dataset that TFDS has written. With
--device_images_per_s it also reports the need of a host with --devices_per_host devices.
"""

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import feeding
from benchmarks.competitor import compete
from benchmarks.feeding import Workload
from benchmarks.measure import RATE, Result, chosen, require_positive
from benchmarks.peers import dali, flax_input
from largebatch.config import load
from largebatch.errors import ConfigError

PEERS = {"flax": flax_input.flax, "dali": dali.dali}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--data", help="source to read, as data.source")
    add("--versus", action="append", default=[], metavar="DATA", help="another source beside it")
    add("--data_dir", help="folder of the sets of tfds:")
    add("--image_size", type=int, help="pixels a side (224)")
    add("--config", type=Path, help="recipe whose data, data_dir and image_size are the defaults")
    add("--threads", default="1,all", help="numbers of cores, comma-separated (1,all)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add("--flax_examples", default="", help="checkout of google/flax, for its example's pipeline")
    add("--images", type=int, default=1024, help="images of a repeat for each core (1,024)")
    add("--seconds", type=float, default=2.0, help="length of a repeat, at least (2)")
    add("--batch", type=int, default=128, help="images of a batch (128)")
    add("--repeats", type=int, default=5, help="repeats, after one to warm up (5)")
    add("--memory_mib", type=int, default=512, help="MiB that ours may read ahead (512)")
    add("--device_images_per_s", type=float, help="images/s that one device trains")
    add("--devices_per_host", type=int, default=1, help="devices of a host (1)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Measure with each number of cores.

    Raises:
        ConfigError: Options that do not fit each other.
        DataError: The source cannot be opened.
    """
    peers = check(flags)
    results: list[Result] = []
    base = Workload.of(flags)
    for cores in core_sets(flags.threads):
        work = replace(base, cores=cores, images=flags.images * len(cores))
        tasks = {"ours": (feeding.ours, work)} | {name: (PEERS[name], work) for name in peers}
        tasks |= {data: (feeding.ours, replace(work, data=data)) for data in flags.versus}
        race = compete(tasks, flags.repeats)
        results += race.results(f"{len(cores)} core{'s' * (len(cores) > 1)}")
    if flags.device_images_per_s:  # of the last number of cores
        needed = flags.device_images_per_s * flags.devices_per_host
        note = _advice(needed, median(race.column(RATE)), work.threads)
        results.append(Result("need of this host", RATE, (needed,), note=note))
    return results


def _advice(needed: float, given: float, cores: int) -> str:
    """Return whether a host's input keeps up, or the number of cores that would.

    Args:
        needed: images/s that the devices of the host train.
        given: images/s that its input delivers; in proportion to the cores.
        cores: number of cores that deliver them.
    """
    share = given / needed
    if share >= 1:
        return f"the input keeps up, {share:.2f} times what is needed"
    return (
        f"the input gives {share:.2f} of what is needed: use {math.ceil(cores / share):,} cores "
        f"per host instead of {cores}"
    )


def check(flags: argparse.Namespace) -> list[str]:
    """Fill in the options of the recipe; returns the peers.

    Raises:
        ConfigError: Options that do not fit each other.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("benchmark input pins its processes to cores: run it on Linux")
    data = load(flags.config).data if flags.config else None
    flags.data = flags.data or (data and data.source)
    flags.data_dir = flags.data_dir or (data.data_dir if data else "")
    flags.image_size = flags.image_size or (data and data.image_size) or 224
    if not flags.data:
        raise ConfigError("--data: expected a source or --config, got neither; name one")
    require_positive(flags, "images", "batch", "repeats")
    return chosen("--peer", flags.peer, PEERS)


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
