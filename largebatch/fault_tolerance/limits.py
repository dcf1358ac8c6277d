"""Time limits: how long each section of a run may take without progress."""

import time
from typing import Literal

from largebatch.config.sections import Health

Section = Literal["init", "compile", "step", "evaluation", "checkpoint"]

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
        option = "compile_limit_s" if self.section == "compile" else "limit_s"
        limit, since = getattr(self._options, option), time.monotonic() - self._moved
        if not limit or since <= limit:
            return None
        return (
            f"no progress in {self.section} for {since:.0f} s; the limit is "
            f"health.{option}={limit:g}"
        )
