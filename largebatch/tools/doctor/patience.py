"""A limit to every wait: what fails on one host alone would keep the others waiting for ever."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

from largebatch.fault_tolerance.exit_codes import HUNG

LIMIT_S = 1800.0
"""Seconds that a stage may take on all hosts together; compiling two steps is the longest."""


class Patience:
    """Ends the process when a stage takes too long; stages name what is being looked at."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """Begins with a stage of no name.

        Args:
          limit_s: of each stage, in seconds; 0: none.
        """
        self._limit_s = limit_s
        self._stage, self._until = "the host", float("inf")

    def stage(self, name: str, *, limited: bool = True) -> None:
        """From now on it is this; one that may take any time is not limited."""
        self._stage = name
        limited &= self._limit_s > 0
        self._until = time.monotonic() + self._limit_s if limited else float("inf")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the body runs; a process that waits for others ends with exit code 70."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(min(0.25, self._limit_s or 0.25)):
            if time.monotonic() > self._until:
                faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
                print(
                    f"error: {self._stage} has taken more than {self._limit_s:g} s: another "
                    "process failed or does not take part, see what it says; --limit_s=0 waits",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(HUNG)
