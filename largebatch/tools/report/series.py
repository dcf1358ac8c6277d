"""Columns of a log as arrays, what they are drawn against, and fewer points that look the same."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from largebatch.tools.report.runs import Rows

AXES = ("epochs", "samples", "time")
"""What a curve can be drawn against; time in seconds."""
_LEAST_S = 0.5
_MOST_INTERVALS = 300


def against(rows: Rows, axis: str) -> np.ndarray:
    """Where the rows stand on an axis: float64 `[rows]`, NaN where that is not known.

    Time is that of the whole run, in seconds, pauses between run attempts left out. Of a log
    without the column `seconds` it is what the steps took at the logged throughput.
    """
    if axis == "epochs":
        return rows.column("epoch")
    if axis == "samples":
        return rows.column("samples")
    seconds = rows.column("seconds")
    if np.isfinite(seconds).any():
        return seconds
    with np.errstate(divide="ignore", invalid="ignore"):
        spent = np.diff(rows.column("samples"), prepend=0.0) / rows.column("images_per_s")
    return np.cumsum(np.where(np.isfinite(spent), spent, 0.0))


def positions(rows: Rows) -> dict[str, np.ndarray]:
    """Positions of the rows on every axis."""
    return {axis: against(rows, axis) for axis in AXES}


def curve(rows: Rows, name: str, points: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a column against every axis, thinned; rows without the column are left out.

    Args:
        rows: of the log, in order.
        name: column.
        points: upper bound, see `thinned`.

    Returns:
        x of each axis and y, float64 `[points]`; y is NaN where a value was not finite.
    """
    chosen = np.flatnonzero(rows.having(name))
    chosen = chosen[thinned(rows.column(name)[chosen], points)]
    return {a: x[chosen] for a, x in positions(rows).items()}, rows.column(name)[chosen]


def thinned(y: np.ndarray, points: int) -> np.ndarray:
    """Return the indices of the points that show every peak, dip and gap of a curve.

    The points are divided into equal intervals; of each, the least and greatest y remain, and one
    NaN if there is any. The first and the last point remain too.

    Args:
        y: `[n]`.
        points: at most 3 / 2 of this many remain, and 2; at least 2.
    """
    count = len(y)
    if count <= points:
        return np.arange(count)
    kept = {0, count - 1}
    edges = np.linspace(0, count, max(1, points // 2) + 1).astype(int)
    for begin, end in itertools.pairwise(edges):
        part = y[begin:end]
        missing = np.isnan(part)
        if missing.any():
            kept.add(begin + int(np.argmax(missing)))
        if not missing.all():
            kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    return np.array(sorted(kept))


class Pooled(NamedTuple):
    """A column over intervals of time.

    Attributes:
        x: of each axis, the end of each interval, `[intervals]`.
        median: of the rows in each interval, `[intervals]`.
        low: their 10 % quantile.
        high: their 90 % quantile.
    """

    x: dict[str, np.ndarray]
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def pooled(rows: Rows, name: str) -> Pooled:
    """Return a column in intervals of at least 0.5 s: rows of a few steps are timer noise."""
    found = positions(rows)
    time, values = found["time"], rows.column(name)
    known = np.flatnonzero(np.isfinite(time) & np.isfinite(values))
    if not known.size:
        return Pooled({axis: np.empty(0) for axis in AXES}, *(np.empty(0) for _ in range(3)))
    passed = time[known] - time[known].min()
    width = max(_LEAST_S, float(passed.max()) / _MOST_INTERVALS)
    order = np.argsort(passed // width, kind="stable")
    known, interval = known[order], (passed // width)[order]
    parts = np.split(known, np.flatnonzero(np.diff(interval)) + 1)
    quantiles = np.array([np.quantile(values[part], (0.5, 0.1, 0.9)) for part in parts])
    last = [part[-1] for part in parts]
    return Pooled({axis: x[last] for axis, x in found.items()}, *quantiles.T)


def place(rows: Rows, samples: Sequence[float], axis: str) -> np.ndarray:
    """Where positions in samples stand on an axis, between rows in proportion; `[positions]`."""
    at = np.asarray(samples, np.float64)
    if axis == "samples":
        return at
    known, value = rows.column("samples"), against(rows, axis)
    good = np.isfinite(known) & np.isfinite(value)
    if not good.any():
        return np.full_like(at, np.nan)
    known, value = known[good], value[good]
    if axis == "epochs":  # proportional, beyond the last row too
        return at * value[-1] / known[-1] if known[-1] else np.zeros_like(at)
    # Before the first row: time there begins where compiling ends, which is not known better.
    return np.interp(at, known, value)
