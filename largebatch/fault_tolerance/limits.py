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
        self._seconds: dict[Section, float] = {
            "init": options.init_limit_s,
            "compile": options.compile_limit_s,
            "step": options.step_limit_s,
            "evaluation": options.evaluation_limit_s,
            "checkpoint": options.checkpoint_limit_s,
        }
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
        limit, since = self._seconds[self.section], time.monotonic() - self._moved
        if not limit or since <= limit:
            return None
        return (
            f"no progress in {self.section} for {since:.0f} s; "
            f"the limit is health.{self.section}_limit_s={limit:g}"
        )
