"""Mean and spread over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (None of one value) and the values, for a record."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def percent(found: Mapping[str, Any], digits: int = 1) -> str:
    """A spread of fractions as '97.5 ± 0.4' (standard deviation), in percent."""
    text = f"{100 * found['mean']:.{digits}f}"
    if found["deviation"] is None:
        return text
    return f"{text} ± {100 * found['deviation']:.{digits}f}"
