"""Columns of a log as arrays, what they are drawn against, and fewer points that look the same."""

import itertools
from collections.abc import Sequence

import numpy as np

from largebatch.report.runs import Rows

AXES = ("epochs", "samples", "time")
"""What a curve can be drawn against; time in seconds."""


def against(rows: Rows, axis: str) -> np.ndarray:
    """Where the rows stand on an axis: float64 `[rows]`, NaN where that is not known.

    Time is that of the whole run, in seconds, pauses between its turns left out. A log without the
    column `seconds` gives what its steps took at the throughput that it states.
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


def curve(rows: Rows, name: str, axis: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    """A column against an axis, thinned; rows that do not have the column are left out.

    Args:
        rows: of the log, in order.
        name: column.
        axis: one of AXES.
        points: at most about so many.

    Returns:
        x and y, float64 `[points]`; y is NaN where a value was not finite, x never.
    """
    x = against(rows, axis)
    shown = rows.having(name) & np.isfinite(x)
    return thinned(x[shown], rows.column(name)[shown], points)


def thinned(x: np.ndarray, y: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Some of the points of a curve, with every peak, dip and gap that can be seen.

    The points are cut into equal runs; of each its least and greatest y stay, and one NaN if there
    is any. The first and the last point of all stay too.

    Args:
        x: `[n]`.
        y: `[n]`.
        points: n is at most 3 / 2 of this afterwards, and 2; at least 2.
    """
    count = len(x)
    if count <= points:
        return x, y
    kept = {0, count - 1}
    edges = np.linspace(0, count, max(1, points // 2) + 1).astype(int)
    for begin, end in itertools.pairwise(edges):
        part = y[begin:end]
        missing = np.isnan(part)
        if missing.any():
            kept.add(begin + int(np.argmax(missing)))
        if not missing.all():
            kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    chosen = np.array(sorted(kept))
    return x[chosen], y[chosen]


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
