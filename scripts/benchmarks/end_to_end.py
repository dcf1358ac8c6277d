"""One step of a whole batch on one device, with its input feed, against a microbatch without it.

    end_to_end --dtype bfloat16 --json records/end_to_end.json
    end_to_end --total 64 --images 4 --workers 2 --image_size 32 --network resnet18 --width 8

The default is the record's batch: 81,920 images as 2,048 workers of 40, 8 workers at a time. The
images are synthetic and pass through the trainer's input feed. The reference is a step of one
microbatch whose images are on the device already.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable

from benchmarks import training
from benchmarks.competitor import Figures, compete
from benchmarks.measure import RATE, Result, require_positive
from benchmarks.training import StepWork, cost
from largebatch.errors import ConfigError
from largebatch.training.timing import Clock

OVERRIDES = True
_STEPS = 1 << 10  # far more than are ever run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--total", type=int, default=2048, help="workers of the whole batch (2,048)")
    add("--images", type=int, default=40, help="images of a worker (40)")
    add("--workers", type=int, default=8, help="workers at a time (8)")
    add("--repeats", type=int, default=3, help="repeats, after one to warm up (3)")
    training.add_work(parser)


def run(flags: argparse.Namespace) -> list[Result]:
    """Interleave steps of the whole batch and of its microbatch.

    Raises:
        ConfigError: The workers at a time do not divide all.
    """
    require_positive(flags, "total", "images", "workers")
    if flags.total % flags.workers:
        raise ConfigError(f"--workers {flags.workers} does not divide --total {flags.total}")
    alone = StepWork.of(flags, batch=flags.images * flags.workers)
    whole = dataclasses.replace(alone, microbatches=flags.total // flags.workers)
    tasks = {"ours": (ours, whole), "microbatch alone": (training.ours, alone)}
    race = compete(tasks, flags.repeats)
    return race.results(f"one step of {flags.total * flags.images:,} images")


def ours(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """Our own step of many microbatches: its feed, its stage, one update. A repeat is a step."""
    run = training.build_run(training.config(work))
    stage, batch = run.first_stage, run.plan.first_stage.samples_per_step
    stage.prepare(())
    clock = Clock()
    steps = min(_STEPS, 2**31 // batch - 1)
    feed = run.first_stage.train_microbatches(0, steps * batch, waited=clock.waited)
    one_step = training.our_step(run, feed)

    def repeat() -> Figures:
        waited, start = clock.wait_s, time.perf_counter()
        one_step()
        one_step.wait()
        wall, waited = time.perf_counter() - start, clock.wait_s - waited
        figures = {RATE: batch / wall, "s": wall, "share of it waiting for images": waited / wall}
        return figures | cost(stage.compile_s, max(stage.bytes.values()))

    about = f"{work.microbatches} microbatches of {work.batch} images through the feed"
    return repeat, f"{about}; {training.about(work)}"
