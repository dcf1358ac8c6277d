"""Our own step of many microbatches, as training runs it: its feed, its programs, one update."""

import time
from collections.abc import Callable

import numpy as np

from benchmarks.runner import Figures
from benchmarks.step_work import StepWork
from benchmarks.training import about, one_device
from benchmarks.xla import Stepper, cost
from largebatch.training.loop import Clock
from largebatch.training.programs import run_step

__all__ = ["about", "prepare"]
_STEPS = 1 << 10  # far more than are ever run


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`; a repeat is one step, and its figures tell the wait for images."""
    run = one_device(work)
    programs, batch = run.first_stage.programs, run.plan.first_stage.samples_per_step
    programs.prepare(())
    clock = Clock()
    batches = run.first_stage.train_microbatches(0, min(_STEPS, 2**31 // batch - 1) * batch)
    feed = clock.timed(batches)
    stepper = Stepper(
        lambda state: run_step(programs, state, feed, run.plan.rates(1)),
        programs.init(np.int32(0)),
    )

    def repeat() -> Figures:
        waited, start = clock.wait_s, time.perf_counter()
        stepper()
        loss = stepper.wait()
        wall = time.perf_counter() - start
        figures = {"images": batch, "wall_s": wall, "steps": 1, "loss": loss}
        needed = max(programs.bytes.values())
        return figures | {"wait_s": clock.wait_s - waited} | cost(programs.compile_s, needed)

    return repeat
