"""Columns of a log as curves: positions on the horizontal axes, and fewer points."""

import itertools
from collections.abc import Sequence

import numpy as np

from largebatch.tools.report.runs import Rows

AXES = {"epochs": "epoch", "samples": "samples", "time": "seconds"}
"""Horizontal axis → its column. Time is in seconds, without the pauses between run attempts."""


def positions(rows: Rows) -> dict[str, np.ndarray]:
    """Return the positions of the rows on each axis: float64 `[rows]`, NaN where unknown."""
    return {axis: rows.column(name) for axis, name in AXES.items()}


def curve(rows: Rows, name: str, points: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a column against every axis, thinned; rows without the column are left out.

    Args:
        rows: rows of the log, in order.
        name: column.
        points: bound of `thinned`.

    Returns:
        x of each axis and y, float64 `[points]`; y is NaN where a value was not finite.
    """
    chosen = np.flatnonzero([name in row for row in rows])
    chosen = chosen[thinned(rows.column(name)[chosen], points)]
    return {axis: x[chosen] for axis, x in positions(rows).items()}, rows.column(name)[chosen]


def thinned(y: np.ndarray, points: int) -> np.ndarray:
    """Return the indices of the points that show every peak, dip and gap of a curve.

    The points are divided into equal intervals. Each keeps its least and greatest y, and one NaN if
    it has any. The first and the last point remain too.

    Args:
        y: `[n]`.
        points: at least 2; at most 3 / 2 of this number remain, and 2.
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


def place(rows: Rows, samples: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the positions of moments given in samples, on each axis `[moments]`; NaN if unknown.

    Epochs are proportional to samples; times are interpolated between rows.
    """
    at = np.asarray(samples, np.float64)
    found = {}
    for axis, value in positions(rows).items():
        known = rows.column("samples")
        good = np.isfinite(known) & np.isfinite(value)
        known, value = known[good], value[good]
        if axis == "samples":
            found[axis] = at
        elif not known.size:
            found[axis] = np.full_like(at, np.nan)
        elif axis == "epochs":
            found[axis] = at * value[-1] / known[-1] if known[-1] else np.zeros_like(at)
        else:
            found[axis] = np.interp(at, known, value)
    return found
