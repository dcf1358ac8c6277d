"""One step of a whole batch on one device, through the feed, against its microbatch alone.

    end_to_end --dtype bfloat16 --json records/end_to_end.json
    end_to_end --total 64 --images 4 --workers 2 --image_size 32 --network resnet18 --width 8

By default that of the record: 81,920 images as 2,048 workers of 40, 8 of them at a time. The images
are synthetic and take the product's way to the device; the microbatch alone is a step of its own
whose images are there already.
"""

import argparse
import dataclasses

from benchmarks import step
from benchmarks.measure import Result
from benchmarks.race import Race, compete
from benchmarks.step_results import Setting, rates
from largebatch.errors import ConfigError

_RATE_SHARE = 0.95
_MEMORY_SHARE = 0.95
_GIB = 1 << 30
_ALONE = "microbatch alone"
OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--total", type=int, default=2048, help="workers of the whole batch (2,048)")
    add("--images", type=int, default=40, help="images of a worker (40)")
    add("--workers", type=int, default=8, help="workers at a time (8)")
    add("--repeats", type=int, default=3, help="repeats, after one to warm up (3)")
    step.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Interleaves steps of the whole batch and of its microbatch.

    Raises:
        ConfigError: The workers at a time do not divide all.
    """
    for name in ("total", "images", "workers"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name} is {getattr(flags, name)}; give 1 or more")
    if flags.total % flags.workers:
        raise ConfigError(f"--workers {flags.workers} does not divide --total {flags.total}")
    alone = step.work_of(flags, flags.images * flags.workers)
    alone = dataclasses.replace(alone, workers=flags.workers)
    whole = dataclasses.replace(alone, microbatches=flags.total // flags.workers)
    tasks = {"ours": ("benchmarks.whole_batch", whole), _ALONE: (step.OURS, alone)}
    return results(compete(tasks, flags.repeats), flags.total * flags.images, Setting.here(alone))


def results(race: Race, batch: int, setting: Setting) -> list[Result]:
    """The whole batch beside its microbatch: rate, memory, wait for images."""
    whole, alone = race.figures["ours"], race.figures[_ALONE]
    name = f"one step of {batch:,} images"
    k = round(whole[0]["images"] / setting.work.batch)
    note = f"{k} microbatches of {setting.work.batch} images through the feed; {race.about['ours']}"
    found = [
        Result(name, "images/s", rates(whole), rates(alone), _ALONE, goal=_RATE_SHARE, note=note),
        Result(name, "s", tuple(one["wall_s"] for one in whole), better="less"),
        Result(
            name,
            "share of it waiting for images",
            tuple(one["wait_s"] / one["wall_s"] for one in whole),
            better="less",
        ),
    ]
    for key, unit in (("program_bytes", "GiB by the compiler"), ("peak_bytes", "GiB in use")):
        if key in whole[0]:
            ours, theirs = (max(one[key] for one in run) / _GIB for run in (whole, alone))
            found.append(
                Result(name, unit, (ours,), (theirs,), _ALONE, better="less", goal=_MEMORY_SHARE)
            )
    return found
