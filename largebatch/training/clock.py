"""Seconds of a turn at a run, by what they were spent on."""

import dataclasses
import time
from collections.abc import Iterator

from largebatch.fault_tolerance import IDLE, Guard
from largebatch.parallel.transfer import OnDevices, patient


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
