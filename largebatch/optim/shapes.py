"""Shapes of warm-up and decay as functions of dimensionless numbers."""

import bisect
import math
from collections.abc import Sequence
from typing import Literal, get_args

Warmup = Literal["linear", "quadratic", "cosine"]
Smooth = Literal["polynomial", "linear", "cosine"]
SMOOTH: tuple[str, ...] = get_args(Smooth)


def rising(shape: Warmup, share: float) -> float:
    """Return the relative height of a warm-up, 0 to 1, after a `share` of its duration.

    Args:
        shape: `linear`: share; `quadratic`: share²; `cosine`: (1 − cos(π·share)) / 2.
        share: 0 to 1.
    """
    if shape == "quadratic":
        return share**2
    if shape == "cosine":
        return (1 - math.cos(math.pi * share)) / 2
    return share


def falling(shape: Smooth, left: float, power: float) -> float:
    """Return the relative height of a decay, 1 to 0, when a share `left` of its duration remains.

    Args:
        shape: `polynomial`: left^power; `linear`: left; `cosine`: (1 + cos(π·(1 − left))) / 2.
        left: 1 to 0.
        power: Exponent of `polynomial`.
    """
    if shape == "polynomial":
        return left**power
    if shape == "cosine":
        return (1 + math.cos(math.pi * (1 - left))) / 2
    return left


def held(points: Sequence[tuple[int, float]], position: int, before: float) -> float:
    """Return the value of the last point at or before `position`.

    Args:
        points: (position, value), ascending.
        position: Position to evaluate.
        before: Value before the first point.
    """
    place = bisect.bisect_right(points, position, key=lambda point: point[0])
    return points[place - 1][1] if place else before


def joined(points: Sequence[tuple[int, float]], position: int) -> float:
    """Interpolate `points` linearly, with constant values before the first and after the last.

    Args:
        points: (position, value), ascending; at least one.
        position: Position to evaluate.
    """
    place = bisect.bisect_right(points, position, key=lambda point: point[0])
    if place in (0, len(points)):
        return points[max(0, place - 1)][1]
    (start, low), (stop, high) = points[place - 1 : place + 1]
    return between(low, high, (position - start) / (stop - start))


def between(low: float, high: float, share: float) -> float:
    """Interpolate linearly; exactly `high` at share 1, unlike low + share·(high − low)."""
    return (1 - share) * low + share * high
