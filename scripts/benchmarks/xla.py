"""What competitors in the training step share that run on JAX."""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.pace import timed_steps
from benchmarks.runner import Figures
from benchmarks.step_work import StepWork
from largebatch.training.memory import program_bytes


class Stepper:
    """A state and the step that takes it to the next; the old one is donated."""

    def __init__(self, step: Callable[[Any], tuple[Any, Any]], state: Any) -> None:
        """Takes no step yet.

        Args:
            step: State to (state, loss or metrics with one); returns before it is computed.
            state: The first.
        """
        self._step = step
        self._state = state

    def __call__(self) -> None:
        """Dispatches a step."""
        self._state, self._loss = self._step(self._state)

    def wait(self) -> float:
        """Blocks until the steps are done; the loss of the last."""
        jax.block_until_ready(self._state)
        return float(getattr(self._loss, "loss", self._loss))

    def repeat(
        self, work: StepWork, program: jax.stages.Compiled, compile_s: float
    ) -> Callable[[], Figures]:
        """As of `pace.timed_steps`, with what the program took: compilation and memory."""
        timed = timed_steps(self, self.wait, work)
        return lambda: timed() | cost(compile_s, program_bytes(program))


def cost(compile_s: float, needed: int) -> Figures:
    """What a program takes: seconds to compile, bytes by the compiler, most bytes in use so far.

    The last only where the device tells.
    """
    found = {"compile_s": compile_s, "program_bytes": float(needed)}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        found["peak_bytes"] = float(stats["peak_bytes_in_use"])
    return found
