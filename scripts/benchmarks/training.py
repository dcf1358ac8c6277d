"""Training steps as competitors: their common work, the clock, and our step."""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.competitor import Figures, Work
from benchmarks.measure import GIB, RATE
from largebatch.config import Config, freeze, override
from largebatch.data import SourceOptions, open_source
from largebatch.errors import ConfigError
from largebatch.models import DEPTHS
from largebatch.parallel import from_local, processes
from largebatch.parallel.clusters import hardware_of
from largebatch.parallel.transfer import OnDevices
from largebatch.tracking import Console
from largebatch.training.dispatch import run_step
from largebatch.training.run import Run
from largebatch.training.stage import program_bytes

BATCHES = 4  # distinct ones, so that no cache holds what a step reads
TRACED_STEPS = 3
LEARNING_RATE, SMOOTHING, MOMENTUM, DECAY = 0.01, 0.1, 0.9, 1e-4
COMPILE_S, PROGRAM_GIB, IN_USE_GIB = "s to compile", "GiB by the compiler", "GiB in use"
_FLOP_PER_IMAGE = 24.3e9  # forward and backward of ResNet-50 at 224×224


@dataclass(frozen=True)
class StepWork(Work):
    """Training steps on images that are already on the device.

    Attributes:
        batch: Images of a step.
        image_size: Pixels a side.
        classes: Outputs of the network.
        dtype: Arithmetic of the convolutions, `float32`, `bfloat16` or `float16`.
        network: A key of `largebatch.models.DEPTHS`.
        width: Channels of the first stage.
        seconds: Length of a repeat, at least; complete steps.
        overrides: Further options of ours, as (key, text).
        profile: Folder for a profile of some steps; empty makes none.
    """

    batch: int = 32
    image_size: int = 224
    classes: int = 1000
    dtype: str = "float32"
    network: str = "resnet50"
    width: int = 64
    seconds: float = 1.0
    overrides: tuple[tuple[str, str], ...] = ()
    profile: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """The competitors share the device's memory."""
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options of what a step is."""
    add = parser.add_argument
    add("--dtype", default="float32", help="float32, bfloat16 or float16 (float32)")
    add("--image_size", type=int, default=224, help="pixels a side (224)")
    add("--network", default="resnet50", choices=DEPTHS, help="network (resnet50)")
    add("--width", type=int, default=64, help="channels of the first stage (64)")
    add("--classes", type=int, default=1000, help="classes (1,000)")
    add("--seconds", type=float, default=1.0, help="length of a repeat, at least (1)")
    add("--answer_s", type=float, default=900.0, help="a competitor silent for so long has failed")


def batches(work: StepWork, *, normalise: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    """BATCHES batches of learnable synthetic images and labels int32 (batch,).

    Args:
        work: The step.
        normalise: Whether the images are float32 of mean 0 and deviation 1, as the pipelines of
            peers deliver them, in place of uint8 (batch, side, side, 3).
    """
    options = SourceOptions(
        image_size=work.image_size, classes=work.classes, examples=BATCHES * work.batch
    )
    source = open_source("synthetic", "train", options)
    found = [source.read(np.arange(work.batch) + i * work.batch) for i in range(BATCHES)]
    if not normalise:
        return found
    mean, std = (np.asarray(x, np.float32) for x in (source.mean, source.std))
    return [((images - mean) / std, labels) for images, labels in found]


def timed_steps(
    step: Callable[[], object], wait: Callable[[], float], work: StepWork
) -> Callable[[], Figures]:
    """The repeat of a training step: complete steps, the device's queue empty at both ends.

    Args:
        step: Dispatches one step.
        wait: Blocks until all steps are done; returns the loss of the last.
        work: Batch and length of a repeat.

    Returns:
        A function that takes a tenth as many steps before those that are timed. It raises a
        RuntimeError if the loss is not finite: a step that does not learn is not measured.
    """

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if steps:
            wait()
        return time.perf_counter() - start

    seconds(1)  # makes whatever is made on first use
    steps = max(1, math.ceil(work.seconds / seconds(1)))

    def repeat() -> Figures:
        seconds(steps // 10)
        wall, loss = seconds(steps), wait()
        if not math.isfinite(loss):
            raise RuntimeError(f"the loss is {loss}")
        return {RATE: steps * work.batch / wall, "ms a step": 1e3 * wall / steps}

    return repeat


class JaxStep:
    """A state and the step that replaces it; the old one is donated."""

    def __init__(self, step: Callable[[Any], tuple[Any, Any]], state: Any) -> None:
        """Take no step yet.

        Args:
            step: State → (state, loss or metrics with one); returns before it is computed.
            state: The first.
        """
        self._step, self._state = step, state

    def __call__(self) -> None:
        """Dispatch a step."""
        self._state, self._loss = self._step(self._state)

    def wait(self) -> float:
        """Block until the steps are done; returns the loss of the last."""
        jax.block_until_ready(self._state)
        return float(getattr(self._loss, "loss", self._loss))

    def competitor(
        self, work: StepWork, program: jax.stages.Compiled, compile_s: float, name: str
    ) -> Callable[[], Figures]:
        """The repeat of `timed_steps` with the program's cost; first the profile, if asked for."""
        if work.profile:
            self()
            self.wait()
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # tracing Python calls would slow the dispatch down
            with jax.profiler.trace(Path(work.profile, name), profiler_options=options):
                for _ in range(TRACED_STEPS):
                    self()
                self.wait()
        repeat = timed_steps(self, self.wait, work)
        return lambda: repeat() | cost(compile_s, program_bytes(program))


def cost(compile_s: float, needed: int) -> Figures:
    """Seconds to compile, memory by the compiler, and peak in use where the device reports it."""
    found = {COMPILE_S: compile_s, PROGRAM_GIB: needed / GIB}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        found[IN_USE_GIB] = stats["peak_bytes_in_use"] / GIB
    return found


def ours(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """Our own train step, as training runs it: its compiled stage, real state, donated."""
    run = build_run(config(work))
    stage, feed = run.first_stage, itertools.cycle(placed_batches(run, work))
    step = JaxStep(
        lambda state: run_step(stage, state, feed, run.plan.rates(1)), stage.init(np.int32(0))
    )
    repeat = step.competitor(work, stage.finish, stage.compile_s, "ours")
    return lambda: with_flops(repeat(), work), about(work)


def with_flops(figures: Figures, work: StepWork) -> Figures:
    """The figures of a ResNet-50 with its FLOP/s, and their share of the peak where it is known."""
    if (work.network, work.width) != ("resnet50", 64):
        return figures
    flops = figures[RATE] * _FLOP_PER_IMAGE * (work.image_size / 224) ** 2
    figures["TFLOP/s"] = flops / 1e12
    device = jax.local_devices()[0]
    known = hardware_of(device.device_kind) if device.platform != "cpu" else None
    return figures | ({"share of peak FLOP/s": flops / known.flops[work.dtype]} if known else {})


def placed_batches(run: Run, work: StepWork) -> Iterator[OnDevices]:
    """`batches` on the device."""
    for batch in batches(work):
        yield OnDevices(*(from_local(run.first_stage.mesh, array) for array in batch))


def build_run(made: Config) -> Run:
    """The product's own run of a recipe on one device, in a process set up like `train.py`'s."""
    processes.prepare_devices()
    return Run.open(made, Console(quiet=True), jax.local_devices()[:1]).build()


def config(work: StepWork) -> Config:
    """The step as a recipe. With one worker all images share statistics, as peers have it.

    Raises:
        ConfigError: The overrides change the batch, or are impossible.
    """
    made = freeze(
        {
            "model": {"name": work.network, "width": work.width, "dtype": work.dtype},
            "batch": {"workers": 1, "images_per_worker": work.batch},
            "data": {
                "source": "synthetic",
                "image_size": work.image_size,
                "examples": BATCHES * work.batch,
                "classes": work.classes,
            },
            "optimizer": {"momentum": MOMENTUM, "weight_decay": DECAY},
            "schedule": {"length": "100 steps", "warmup": "0 steps", "peak": LEARNING_RATE},
            "loss": {"label_smoothing": SMOOTHING},
        }
    )
    for key, text in work.overrides:
        made = override(made, key, text)
    images = made.batch.workers * made.batch.images_per_worker
    if images != work.batch:
        raise ConfigError(
            f"--config.batch: expected {work.batch} images a step, as the other options give, got "
            f"{images}; change both alike"
        )
    return made


def about(work: StepWork) -> str:
    """What our step runs."""
    made = config(work)
    model = f"{made.model.name}, {made.model.dtype}, stem {made.model.stem}"
    return f"{model}, {made.optimizer.name}, uint8 images normalised in the step"
