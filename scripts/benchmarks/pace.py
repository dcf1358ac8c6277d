"""The clock of a competitor in the training step."""

import math
import time
from collections.abc import Callable

from benchmarks.runner import Figures
from benchmarks.step_work import StepWork


def timed_steps(
    step: Callable[[], object], wait: Callable[[], float], work: StepWork
) -> Callable[[], Figures]:
    """The repeat of a training step: whole steps, the queue of the device empty at both ends.

    Args:
        step: Dispatches one step.
        wait: Blocks until all steps are done; returns the loss of the last.
        work: How many images a step has, and how long a repeat takes.

    Returns:
        A function that takes a tenth as many steps before those that are timed. It raises a
        RuntimeError if the loss is not finite: nothing is measured where nothing is learnt.
    """
    _seconds(step, wait, 1)  # whatever is made on first use is there then
    each = _seconds(step, wait, 1)
    steps = max(1, math.ceil(work.seconds / each))

    def repeat() -> Figures:
        _seconds(step, wait, steps // 10)
        wall = _seconds(step, wait, steps)
        loss = wait()
        if not math.isfinite(loss):
            raise RuntimeError(f"the loss is {loss}")
        return {"images": steps * work.batch, "wall_s": wall, "steps": steps, "loss": loss}

    return repeat


def _seconds(step: Callable[[], object], wait: Callable[[], float], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if steps:
        wait()
    return time.perf_counter() - start
