"""What batch.microbatch=auto chooses here, how much of its budget that uses, and what is in use.

microbatch --dtype bfloat16 --json records/microbatch.json
microbatch --total 16 --images 4 --image_size 32 --config.batch.memory_gib=0.02
"""

import argparse
import dataclasses
import math
from collections.abc import Callable

import jax

from benchmarks import step, step_work
from benchmarks.competitor import Competitor, Figures, Race
from benchmarks.measure import GIB, Result
from benchmarks.step_work import IN_USE_GIB, StepWork, cost
from largebatch.config import Config, microbatch_candidates
from largebatch.parallel.transfer import WAITING
from largebatch.training.memory import device_bytes, is_exhausted
from largebatch.training.setup import Run

OVERRIDES = True
CHOICES = "larger choices that fit"
_USED = 0.9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--total", type=int, default=2048, help="workers of the whole batch (2,048)")
    add("--images", type=int, default=40, help="images of a worker (40)")
    step.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Let it choose, then run one step."""
    work = dataclasses.replace(step.work_of(flags, flags.images), microbatches=flags.total)
    with Competitor(auto, work) as competitor:
        race = Race({"ours": [competitor.repeat()]}, about={"ours": competitor.about})
    return race.results("batch.microbatch=auto", {("ours", CHOICES): 0})


def auto(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The repeat runs one step with the choice.

    `batch` and `microbatches` of the work are the images of a worker and the workers.
    """
    made = _with_microbatch(step_work.config(work), "auto")
    run = step_work.build_run(made)
    stage, programs = run.first_stage, run.first_stage.programs
    needed, budget = needed_bytes(run), device_bytes(jax.devices()[0], made.batch.memory_gib, 1)
    budget *= 1 - made.batch.memory_margin
    larger = [
        number
        for number in microbatch_candidates(made, run.plan.facts)
        if number > stage.plan.microbatch
    ]
    following = _needed_with(made, larger[0]) if larger else math.inf

    def repeat() -> Figures:
        feed = stage.train_microbatches(0, stage.plan.samples_per_step)
        one_step = step_work.our_step(run, feed)
        one_step()
        one_step.wait()
        costs = cost(programs.compile_s, needed)
        if IN_USE_GIB in costs:
            costs["of what was planned in use"] = costs[IN_USE_GIB] * GIB / needed
        images = {"images at a time": float(stage.plan.local_images)}
        return images | shares(needed / budget, following / budget) | costs

    return repeat, f"{stage.plan.microbatch} workers at a time; budget {budget / GIB:.3g} GiB"


def shares(used: float, following: float) -> Figures:
    """Shares of the budget that the choice and the next larger one need.

    Args:
        used: By the choice.
        following: By the next larger one; infinite if there is none, or it cannot be compiled.
    """
    fits = following <= 1 and used < _USED
    found = {"share": used, CHOICES: float(fits)}
    return found if math.isinf(following) else found | {"share, next larger": following}


def needed_bytes(run: Run) -> int:
    """Bytes of the train step and of the images that wait meanwhile."""
    programs, plan = run.first_stage.programs, run.plan
    _ = programs.finish
    waiting = WAITING * plan.first_stage.local_images * math.prod(plan.facts.image_shape)
    return programs.bytes["train step"] + waiting


def _needed_with(made: Config, microbatch: int) -> float:
    """Infinite where the compiler runs out of memory."""
    try:
        return needed_bytes(step_work.build_run(_with_microbatch(made, microbatch)))
    except jax.errors.JaxRuntimeError as error:
        if not is_exhausted(error):
            raise
        return math.inf


def _with_microbatch(made: Config, microbatch: int | str) -> Config:
    return dataclasses.replace(made, batch=dataclasses.replace(made.batch, microbatch=microbatch))
