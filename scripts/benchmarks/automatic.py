"""What batch.microbatch=auto chooses on this device, and whether the next larger would fit."""

import dataclasses
import math
import sys
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.runner import Figures
from benchmarks.step_work import StepWork
from benchmarks.training import config
from benchmarks.xla import Stepper, cost
from largebatch.config import Config, microbatch_candidates
from largebatch.parallel.transfer import WAITING
from largebatch.tracking import Console
from largebatch.training.memory import device_bytes, is_exhausted
from largebatch.training.programs import run_step
from largebatch.training.setup import Run, build


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`; the repeat runs one step with what was chosen.

    `batch` and `microbatches` of the work are the images of a worker and the workers.
    """
    made = config(work)
    made = dataclasses.replace(made, batch=dataclasses.replace(made.batch, microbatch="auto"))
    run = _build(made)
    plan, device = run.plan, jax.local_devices()[0]
    budget = device_bytes(device, made.batch.memory_gib, 1) * (1 - made.batch.memory_margin)
    larger = [m for m in microbatch_candidates(made, plan.facts) if m > plan.first_stage.microbatch]
    facts = {
        "workers": float(plan.first_stage.microbatch),
        "images": float(plan.first_stage.local_images),
        "budget": budget,
        "needed": float(needed(run)),
        "next": float(_needed_with(made, larger[0])) if larger else math.inf,
    }

    def repeat() -> Figures:
        batches = run.first_stage.train_microbatches(0, plan.first_stage.samples_per_step)
        state = run.first_stage.programs.init(np.int32(0))
        stepper = Stepper(
            lambda state: run_step(run.first_stage.programs, state, batches, run.plan.rates(1)),
            state,
        )
        stepper()
        return (
            facts | {"loss": stepper.wait()} | cost(run.first_stage.programs.compile_s, needed(run))
        )

    return repeat


def needed(run: Run) -> int:
    """Bytes of the train step and of the images that wait meanwhile."""
    _ = run.first_stage.programs.finish
    waiting = WAITING * run.plan.first_stage.local_images * math.prod(run.plan.facts.image_shape)
    return run.first_stage.programs.bytes["train step"] + waiting


def _needed_with(made: Config, microbatch: int) -> int:
    fixed = dataclasses.replace(made.batch, microbatch=microbatch)
    try:
        return needed(_build(dataclasses.replace(made, batch=fixed)))
    except jax.errors.JaxRuntimeError as error:
        if not is_exhausted(error):
            raise
        return sys.maxsize


def _build(made: Config) -> Run:
    return build(made, Console(quiet=True), jax.local_devices()[:1])
