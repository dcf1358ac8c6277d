"""Shapes of warm-up and decay as functions of plain numbers, without rates or positions."""

import bisect
import math
from collections.abc import Sequence
from typing import Literal, get_args

Warmup = Literal["linear", "power", "cosine"]
Smooth = Literal["polynomial", "linear", "cosine"]
SMOOTH: tuple[str, ...] = get_args(Smooth)


def rising(shape: Warmup, share: float, power: float) -> float:
    """How far a warm-up has come, 0 to 1, when a `share` of it is over.

    Args:
        shape: `linear`: share; `power`: share^power; `cosine`: (1 − cos(π·share)) / 2.
        share: 0 to 1.
        power: Of `power`.
    """
    if shape == "power":
        return share**power
    if shape == "cosine":
        return (1 - math.cos(math.pi * share)) / 2
    return share


def falling(shape: Smooth, left: float, power: float) -> float:
    """What is left of the height of a decay, 1 to 0, when a share `left` of it is still to come.

    Args:
        shape: `polynomial`: left^power; `linear`: left; `cosine`: (1 + cos(π·(1 − left))) / 2.
        left: 1 to 0.
        power: Of `polynomial`.
    """
    if shape == "polynomial":
        return left**power
    if shape == "cosine":
        return (1 + math.cos(math.pi * (1 - left))) / 2
    return left


def arctangent(distance: float, width: float, cubic: float) -> float:
    """½ − atan(x / width + (x / cubic)³) / π, with x twice the distance after the turn.

    From 1 long before the turn over ½ at it to 0 long after. Fujitsu's submission to MLPerf v0.6
    (open division, optimiser's explorer) calls it natan; its cube is (x in epochs)³ / 1,000.

    Args:
        distance: From the turn, negative before it.
        width: Where the linear term is 1, in the unit of the distance.
        cubic: Where the cubic term is 1; 10 epochs in the source.
    """
    x = 2 * distance if distance > 0 else distance
    return 0.5 - math.atan(x / width + (x / cubic) ** 3) / math.pi


def held(points: Sequence[tuple[int, float]], position: int, before: float) -> float:
    """The value of the last point at or before `position`; `before` where there is none.

    Args:
        points: (position, value), ascending.
        position: Where.
        before: Value ahead of the first point.
    """
    place = bisect.bisect_right(points, position, key=lambda point: point[0])
    return points[place - 1][1] if place else before


def joined(points: Sequence[tuple[int, float]], position: int) -> float:
    """The piecewise linear curve through `points`, level ahead of the first and after the last.

    Args:
        points: (position, value), ascending; at least one.
        position: Where.
    """
    place = bisect.bisect_right(points, position, key=lambda point: point[0])
    if place in (0, len(points)):
        return points[max(0, place - 1)][1]
    (start, low), (stop, high) = points[place - 1 : place + 1]
    return between(low, high, (position - start) / (stop - start))


def between(low: float, high: float, share: float) -> float:
    """Linear; exactly `high` at share 1, which low + share·(high − low) can miss by rounding."""
    return (1 - share) * low + share * high
