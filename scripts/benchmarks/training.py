"""Our own train step, as training runs it: its compiled programs, real state, donated."""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.recorder import record
from benchmarks.runner import Figures
from benchmarks.step_work import BATCHES, DECAY, MOMENTUM, RATE, SMOOTHING, StepWork, batches
from benchmarks.xla import Stepper
from largebatch.config import Config, freeze, override
from largebatch.errors import ConfigError
from largebatch.parallel import from_local
from largebatch.parallel.transfer import OnDevices
from largebatch.tracking import Console
from largebatch.training.programs import run_step
from largebatch.training.setup import Run, build


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    run = one_device(work)
    programs = run.first_stage.programs
    _ = programs.finish
    compile_s = programs.compile_s
    mesh = run.first_stage.mesh
    feed = itertools.cycle(
        [OnDevices(*(from_local(mesh, a) for a in batch)) for batch in batches(work)]
    )

    stepper = Stepper(
        lambda state: run_step(programs, state, feed, run.plan.rates(1)),
        programs.init(np.int32(0)),
    )
    if work.trace:
        record(work.trace, "ours", stepper, programs.finish)
    return stepper.repeat(work, programs.finish, compile_s)


def one_device(work: StepWork) -> Run:
    """The product's own run of this step on one device."""
    return build(config(work), Console(quiet=True), jax.local_devices()[:1])


def config(work: StepWork) -> Config:
    """The step as a recipe. With one worker all images share statistics, as the peers have it.

    Raises:
        ConfigError: The workers cannot share the images, or the overrides change the batch.
    """
    if work.batch % work.workers:
        raise ConfigError(f"{work.workers} workers cannot share {work.batch} images evenly")
    batch = work.batch * work.microbatches
    made = freeze(
        {
            "model": {"name": work.network, "width": work.width, "dtype": work.dtype},
            "batch": {
                "workers": work.workers * work.microbatches,
                "images_per_worker": work.batch // work.workers,
                "microbatch": work.workers,
            },
            "data": {
                "source": "synthetic",
                "image_size": work.image_size,
                "examples": max(BATCHES * work.batch, batch),
                "classes": work.classes,
            },
            "optimizer": {"momentum": MOMENTUM, "weight_decay": DECAY},
            "schedule": {"length": "100 steps", "warmup": "0 steps", "peak": RATE},
            "loss": {"label_smoothing": SMOOTHING},
        }
    )
    for text in work.overrides:
        key, _, value = text.partition("=")
        made = override(made, key, value)
    images = made.batch.workers * made.batch.images_per_worker
    if images != batch:
        raise ConfigError(
            f"--config.batch makes {images} images of a step, the other options {batch}; "
            "change both alike"
        )
    return made


def about(work: StepWork) -> str:
    """What was run."""
    made = config(work)
    options = dataclasses.asdict(made.optimizer)
    return (
        f"{made.model.name}, {made.model.dtype}, stem {made.model.stem}, {options['name']}, "
        f"uint8 images normalised in the step"
    )
