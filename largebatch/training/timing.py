"""Seconds of a run attempt by what they were spent on, and the profiler of a few steps."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from largebatch.errors import one_line

PyTree = Any


@dataclasses.dataclass
class Clock:
    """Seconds of all attempts at a run, by what they were spent on.

    An attempt begins with the seconds of those before it.
    """

    earlier_s: float = 0.0
    """Wall time of the attempts before this one."""
    began: float = dataclasses.field(default_factory=time.perf_counter)
    """The ``time.perf_counter()`` at which this attempt started."""
    train_s: float = 0.0
    """Training without evaluations and checkpoints, up to the last `pause`."""
    wait_s: float = 0.0
    """The part of training that waited for data."""
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    _since: float | None = None

    def __post_init__(self) -> None:
        self._before = self.spent()

    def start(self) -> None:
        """Start or continue to count training time."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop counting training time."""
        self.train_s, self._since = self.now(), None

    def attempt_s(self) -> float:
        """Return the wall time of this attempt."""
        return time.perf_counter() - self.began

    def spent(self) -> dict[str, float]:
        """Return the seconds of all attempts, by name."""
        return {
            "train_s": self.now(),
            "wait_s": self.wait_s,
            "evaluation_s": self.evaluation_s,
            "checkpoint_s": self.checkpoint_s,
        }

    def spent_in_attempt(self) -> dict[str, float]:
        """Return the seconds of this attempt, by name."""
        return {name: seconds - self._before[name] for name, seconds in self.spent().items()}

    def wall_s(self) -> float:
        """Return the wall time of all attempts."""
        return self.earlier_s + self.attempt_s()

    def now(self) -> float:
        """Return the seconds of training so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self.train_s + running

    def waited(self, seconds: float) -> None:
        """Count the wait for a microbatch."""
        self.wait_s += seconds


class Profiler:
    """Traces a range of steps.

    It waits for dispatched work at both ends, so that the trace holds complete steps only; the
    steps in between overlap as they do without it. An evaluation, a checkpoint or the end of a
    stage ends the trace. Starting and stopping it does not count as training time.
    """

    def __init__(
        self,
        steps: tuple[int, int],
        place: Path,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        """Prepare; `before` starts the trace.

        Args:
          steps: the first and the last step.
          place: output directory.
          clock: the training clock, which is paused during start and stop.
          tell: prints where the trace is, or why there is none.
        """
        self._steps: tuple[int, int] | None = steps  # None: the trace has ended
        self._place = place
        self._clock, self._tell = clock, tell
        self._from: int | None = None
        """The first step of the running trace."""

    def before(self, step: int, state: PyTree) -> None:
        """Start the trace if ``step``, about to be dispatched on ``state``, is in the range.

        An attempt that starts within the range traces the rest of it.

        Args:
          step: its number.
          state: before it.
        """
        if self._steps is None or self._from or not self._steps[0] <= step <= self._steps[1]:
            return
        jax.block_until_ready(state)
        options = jax.profiler.ProfileOptions()
        # Events of Python calls fill a trace by the million.
        options.python_tracer_level = 0
        self._attempt(lambda: jax.profiler.start_trace(str(self._place), profiler_options=options))
        self._from = step if self._steps else None

    def after(self, step: int, state: PyTree, *, last: bool = False) -> None:
        """Stop the trace if ``step``, which has been dispatched, is its last one.

        Args:
          step: number of the step.
          state: the state after it.
          last: whether something other than a step follows.
        """
        if self._from and (last or step >= self._steps[1]):
            jax.block_until_ready(state)
            first, done = self._from, self._attempt(jax.profiler.stop_trace)
            self._steps = self._from = None
            if done:
                self._tell(f"profile of steps {first} to {step}: {self._place}")

    def close(self) -> None:
        """Stop a trace that an error has interrupted."""
        if self._from:
            self._steps = self._from = None
            self._attempt(jax.profiler.stop_trace)

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Call the profiler; a failure, such as a full disk, warns and does not end the run."""
        self._clock.pause()
        try:
            action()
        except Exception as error:
            self._steps = None
            self._tell(f"warning: no profile: {one_line(error)}")
            return False
        finally:
            self._clock.start()
        return True
