"""The study of synchrony in docs/studies.md; mean and spread over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None for one value) and values, for a record."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def percent(found: Mapping[str, Any]) -> str:
    """Return a spread of fractions in percent, such as '97.5 ± 0.4' (standard deviation)."""
    text = f"{100 * found['mean']:.1f}"
    if found["deviation"] is None:
        return text
    return f"{text} ± {100 * found['deviation']:.1f}"
