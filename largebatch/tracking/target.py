"""The accuracy that a run is to reach, and when it did."""

from collections.abc import Iterable, Mapping
from typing import Any


class Target:
    """Looks at every evaluation of a run, those of earlier turns included.

    Attributes:
        top1: the accuracy wanted, a fraction; 0: none.
        step: steps after which an evaluation first reached it; None before.
        seconds: wall time of the run until that evaluation was done; None before, or unknown.
        best: the greatest accuracy so far, a fraction; None before the first evaluation.
    """

    def __init__(self, top1: float, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Takes the accuracy wanted, and the rows of `metrics.jsonl` that are there already."""
        self.top1 = top1
        self.step: int | None = None
        self.seconds: float | None = None
        self.best: float | None = None
        for row in rows:
            found = row.get("validation/top1")
            if found is not None:
                self.look(row["step"], row.get("seconds"), found)

    def look(self, step: int, seconds: float | None, top1: float) -> str:
        """Looks at an evaluation.

        Args:
            step: steps completed.
            seconds: wall time of the run.
            top1: what was found, a fraction.

        Returns:
            What to say of it: something only where the target is reached for the first time.
        """
        self.best = top1 if self.best is None else max(self.best, top1)
        if not self.top1 or self.step is not None or top1 < self.top1:
            return ""
        self.step, self.seconds = step, seconds
        return f"target {self.top1:.2%} reached"

    def rows(self) -> list[tuple[str, str]]:
        """What to say at the end, as (label, value): nothing without a target."""
        if not self.top1:
            return []
        if self.step is None:
            best = "nothing was evaluated" if self.best is None else f"best {self.best:.2%}"
            return [("target", f"{self.top1:.2%} not reached, {best}")]
        after = "" if self.seconds is None else f", after {self.seconds:.1f} s"
        return [("target", f"{self.top1:.2%} reached at step {self.step:,}{after}")]
