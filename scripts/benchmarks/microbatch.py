"""What batch.microbatch=auto chooses here, how much of its budget that uses, and what is in use.

microbatch --dtype bfloat16 --json records/microbatch.json
microbatch --total 16 --images 4 --image_size 32 --config.batch.memory_gib=0.02
"""

import argparse
import dataclasses
import math

from benchmarks import step
from benchmarks.competitor import Competitor
from benchmarks.measure import Result

_USED = 0.9
_GIB = 1 << 30
OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--total", type=int, default=2048, help="workers of the whole batch (2,048)")
    add("--images", type=int, default=40, help="images of a worker (40)")
    step.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Lets it choose, then runs one step."""
    work = dataclasses.replace(step.work_of(flags, flags.images), microbatches=flags.total)
    with Competitor("benchmarks.automatic", work) as competitor:
        return results(competitor.repeat())


def results(found: dict[str, float]) -> list[Result]:
    """The choice, the share of the budget, and the next larger."""
    used, following = found["needed"] / found["budget"], found["next"] / found["budget"]
    note = (
        f"{found['workers']:.0f} workers, {found['images']:.0f} images at a time; budget "
        f"{found['budget'] / _GIB:.3g} GiB; {found['compile_s']:.0f} s to compile, search included"
    )
    if not math.isinf(following):
        note += f"; the next larger would need {following:.2f} of the budget"
    fits = 0.0 if following > 1 or used >= _USED else 1.0
    kept = [
        Result("chosen by auto", "images at a time", (found["images"],), note=note),
        Result("share of the budget", "share", (used,)),
        Result("larger choices that fit", "choices", (fits,), better="less", goal=0),
    ]
    if "peak_bytes" in found:
        kept.append(
            Result("in use", "of what was planned", (found["peak_bytes"] / found["needed"],))
        )
    return kept
