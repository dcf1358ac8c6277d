"""Time limits: how long each section of a run may take without progress."""

import time
from typing import Literal

from largebatch.config.sections import Health

Section = Literal["init", "compile", "step", "evaluation", "checkpoint"]

COMPILING = 4
"""Multiple of ``health.limit_s`` that a compilation may take."""
_SETUP: frozenset[Section] = frozenset({"init", "compile"})


class Limits:
    """The present section of a run, and the time of its last progress."""

    def __init__(self, options: Health) -> None:
        """Start in ``init``."""
        self._options = options
        self.section: Section = "init"
        self.setup = True
        """Whether nothing has been trained yet that is not in a checkpoint."""
        self._moved = time.monotonic()

    def enter(self, section: Section) -> None:
        """Enter ``section``."""
        self.section = section
        self.setup &= section in _SETUP
        self.alive()

    def alive(self) -> None:
        """Note progress."""
        self._moved = time.monotonic()

    def overdue(self) -> str | None:
        """Return the message for a section that exceeds its limit; None otherwise."""
        times = COMPILING if self.section == "compile" else 1
        limit, since = self._options.limit_s, time.monotonic() - self._moved
        if not limit or since <= times * limit:
            return None
        several = f"{times} times " if times > 1 else ""
        return (
            f"no progress in {self.section} for {since:.0f} s; the limit is {several}"
            f"health.limit_s={limit:g}"
        )
