"""Seconds of a run attempt by what they were spent on, and the profiler of a few steps."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from largebatch.errors import one_line
from largebatch.fault_tolerance import IDLE, Guard
from largebatch.parallel.transfer import OnDevices, patient

PyTree = Any


@dataclasses.dataclass
class Clock:
    """Seconds of training, without evaluation and checkpoints, and how many were waiting."""

    earlier_s: float = 0.0
    """Wall time of the turns before this one."""
    began: float = dataclasses.field(default_factory=time.perf_counter)
    """The ``time.perf_counter()`` at which this turn started."""
    train_s: float = 0.0
    wait_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    _since: float | None = None

    def start(self) -> None:
        """Go on counting."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop counting."""
        self.train_s, self._since = self.now(), None

    def turn_s(self) -> float:
        """Wall time of this turn so far."""
        return time.perf_counter() - self.began

    def wall_s(self) -> float:
        """Wall time of all turns so far."""
        return self.earlier_s + self.turn_s()

    def now(self) -> float:
        """Seconds of training so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self.train_s + running

    def timed(self, feed: Iterator[OnDevices | None], guard: Guard = IDLE) -> Iterator[OnDevices]:
        """The same microbatches, the wait for each counted; the guard is polled meanwhile."""
        microbatches = patient(feed, guard)
        while True:
            start = time.perf_counter()
            microbatch = next(microbatches, None)
            self.wait_s += time.perf_counter() - start
            if microbatch is None:
                return
            yield microbatch


class Profiler:
    """Traces the steps of a range, and nothing else that the run does.

    What was dispatched before is waited for at both ends, so that the trace holds whole steps and
    those only; the steps in between overlap as they do without it. Where the range meets an
    evaluation, a checkpoint or the end of a stage, it ends there. None of it is training time.
    """

    def __init__(
        self,
        steps: tuple[int, int] | None,
        place: Path,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        """Trace to a folder.

        Args:
          steps: the first and the last; None traces nothing.
          place: the folder.
          clock: of training, which stands still meanwhile.
          tell: is told where the trace is, or why there is none.
        """
        self._steps, self._place = steps, place
        self._clock, self._tell = clock, tell
        self._from: int | None = None
        """The first step of the trace that is under way."""
        self._programs: Sequence[jax.stages.Compiled] = ()

    def before(
        self, step: int, state: PyTree, programs: Sequence[jax.stages.Compiled] = ()
    ) -> None:
        """Start the trace if it begins with step ``step``, which is about to be dispatched.

        A run attempt that begins within the range traces the rest of it.

        Args:
          step: its number.
          state: before it.
          programs: what the step runs; their text is written beside the trace.
        """
        if self._steps is None or self._from or not self._steps[0] <= step <= self._steps[1]:
            return
        jax.block_until_ready(state)
        options = jax.profiler.ProfileOptions()
        # Calls of Python functions fill a trace with millions of events that no share is made of.
        options.python_tracer_level = 0
        self._attempt(lambda: jax.profiler.start_trace(str(self._place), profiler_options=options))
        self._from, self._programs = (step if self._steps else None), programs

    def after(self, step: int, state: PyTree, *, last: bool = False) -> None:
        """Step ``step`` has been dispatched and leads to ``state``.

        Args:
          step: its number.
          state: after it.
          last: whether something else than a step comes next.
        """
        if self._from and (last or step >= self._steps[1]):
            jax.block_until_ready(state)
            first, done = self._from, self._attempt(jax.profiler.stop_trace)
            self._steps = self._from = None
            if done:
                self._attempt(self._write_programs)
                self._tell(f"profile of steps {first} to {step}: {self._place}")

    def close(self) -> None:
        """Drop a trace that an error has cut off."""
        if self._from:
            self._steps = self._from = None
            self._attempt(jax.profiler.stop_trace)

    def _write_programs(self) -> None:
        """Write what the traced instructions compute, ``MODULE.hlo.txt`` for each program."""
        for text in filter(None, (program.as_text() for program in self._programs)):
            name = text.partition(",")[0].removeprefix("HloModule ")
            (self._place / f"{name}.hlo.txt").write_text(text)

    def _attempt(self, action: Callable[[], None]) -> bool:
        """A trace that cannot be made, for want of room say, ends no training."""
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
