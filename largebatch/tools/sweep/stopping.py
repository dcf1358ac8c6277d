"""How a sweep is told to stop."""

import contextlib
import signal
from collections.abc import Callable, Iterator


class Stopping:
    """Whether the sweep was asked to stop, and by what."""

    def __init__(self) -> None:
        self.reason = ""
        self.kill: Callable[[], None] = lambda: None

    def __call__(self, number: int, _: object) -> None:
        """A signal: the first one asks, the second ends the trials at once."""
        if self.reason:
            self.kill()
        self.reason = signal.Signals(number).name


@contextlib.contextmanager
def signals() -> Iterator[Stopping]:
    """The signals that stop a sweep are taken over while the body runs."""
    stopping = Stopping()
    before = {number: signal.signal(number, stopping) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
