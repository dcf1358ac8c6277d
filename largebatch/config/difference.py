"""Differences between two configurations, and their effect on the mathematics."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from largebatch.config.options import options
from largebatch.config.schema import Config


@dataclasses.dataclass(frozen=True)
class Difference:
    """One option with different values in two configurations."""

    key: str
    stored: Any
    requested: Any
    mathematics: bool
    """Whether the option changes the numbers that training computes."""


def differences(stored: Config, requested: Config) -> tuple[Difference, ...]:
    """Return the options that differ, in the order of the schema."""
    return tuple(
        Difference(key, old, new, field.metadata["mathematics"])
        for (key, old, field), (_, new, _) in zip(options(stored), options(requested), strict=True)
        if old != new
    )


def table(found: Sequence[Difference]) -> str:
    """Format the differences as a table."""
    rows = [("option", "checkpoint", "this run", "mathematics")]
    rows += [
        (d.key, repr(d.stored), repr(d.requested), "changes" if d.mathematics else "same")
        for d in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
