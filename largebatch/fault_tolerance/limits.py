"""How long each part of a run may go without progress."""

import time
from typing import Literal

from largebatch.config.sections import Health

Section = Literal["init", "compile", "step", "evaluation", "checkpoint"]

_SETUP: frozenset[Section] = frozenset({"init", "compile"})


class Limits:
    """The section that a run is in, and since when it has not moved."""

    def __init__(self, options: Health) -> None:
        """Begins in ``init``."""
        self._seconds: dict[Section, float] = {
            "init": options.init_limit_s,
            "compile": options.compile_limit_s,
            "step": options.step_limit_s,
            "evaluation": options.evaluation_limit_s,
            "checkpoint": options.checkpoint_limit_s,
        }
        self.section: Section = "init"
        self.setup = True
        """Nothing has been trained yet that no checkpoint has."""
        self._moved = time.monotonic()

    def enter(self, section: Section) -> None:
        """Be in ``section`` from now on."""
        self.section = section
        self.setup &= section in _SETUP
        self.alive()

    def alive(self) -> None:
        """Progress was made."""
        self._moved = time.monotonic()

    def overdue(self) -> str | None:
        """What to say of a run that has not moved for too long."""
        limit, since = self._seconds[self.section], time.monotonic() - self._moved
        if not limit or since <= limit:
            return None
        return (
            f"no progress in {self.section} for {since:.0f} s; "
            f"the limit is health.{self.section}_limit_s={limit:g}"
        )
