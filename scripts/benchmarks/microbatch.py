"""The microbatch that batch.microbatch=auto chooses, and the memory that it uses.

microbatch --dtype bfloat16 --json records/microbatch.json
microbatch --total 16 --images 4 --image_size 32
"""

import argparse
import math
from collections.abc import Callable

import jax

from benchmarks import training
from benchmarks.competitor import Competitor, Figures, Race
from benchmarks.measure import GIB, Result
from benchmarks.training import IN_USE_GIB, StepWork, cost
from largebatch.parallel.transfer import WAITING
from largebatch.training.memory import USABLE, device_bytes

OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--total", type=int, default=2048, help="workers of the whole batch (2,048)")
    add("--images", type=int, default=40, help="images of a worker (40)")
    training.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Let it choose, then run one step."""
    overrides = [("batch.microbatch", "auto"), *flags.overrides]
    work = StepWork.of(flags, batch=flags.images, microbatches=flags.total, overrides=overrides)
    with Competitor(auto, work) as competitor:
        race = Race({"ours": [competitor.repeat()]}, about={"ours": competitor.about})
    return race.results("batch.microbatch=auto")


def auto(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The repeat runs one step with the choice.

    `batch` and `microbatches` of the work are the images of a worker and the workers.
    """
    made = training.config(work)
    run = training.build_run(made)
    stage = run.first_stage
    _ = stage.finish
    waiting = WAITING * stage.plan.local_images * math.prod(run.plan.facts.image_shape)
    needed = stage.bytes["train step"] + waiting
    budget = USABLE * device_bytes(jax.devices()[0], 1)

    def repeat() -> Figures:
        one_step = training.our_step(run, stage.train_microbatches(0, stage.plan.samples_per_step))
        one_step()
        one_step.wait()
        costs = cost(stage.compile_s, needed)
        if IN_USE_GIB in costs:
            costs["of what was planned in use"] = costs[IN_USE_GIB] * GIB / needed
        images = float(stage.plan.local_images)
        return {"images at a time": images, "share of the budget": needed / budget} | costs

    return repeat, f"{stage.plan.microbatch} workers at a time; budget {budget / GIB:.3g} GiB"
