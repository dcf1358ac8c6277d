"""Logs as columns and curves: positions on the horizontal axes, and fewer points."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
AXES = {"epochs": "epoch", "samples": "samples", "time": "seconds"}
"""Horizontal axis → its column. Time is in seconds, without the pauses between run attempts."""


class Rows(tuple[Row, ...]):
    """Rows of a log, with its columns as arrays."""

    def column(self, name: str) -> np.ndarray:
        """Return a column as float64 `[rows]`, NaN where a row has no number of it."""
        columns = self.__dict__.setdefault("_columns", {})
        if name not in columns:
            found = (row.get(name) for row in self)
            numbers = [value if isinstance(value, int | float) else np.nan for value in found]
            columns[name] = np.array(numbers, np.float64)
        return columns[name]

    def last(self, name: str) -> float | None:
        """Return the last number of a column; None if there is none."""
        known = self.column(name)[np.isfinite(self.column(name))]
        return float(known[-1]) if known.size else None


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
    x = {axis: rows.column(column)[chosen] for axis, column in AXES.items()}
    return x, rows.column(name)[chosen]


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
    found = {"samples": at}
    for axis in ("epochs", "time"):
        known, value = rows.column("samples"), rows.column(AXES[axis])
        good = np.isfinite(known) & np.isfinite(value)
        known, value = known[good], value[good]
        if not known.size:
            found[axis] = np.full_like(at, np.nan)
        elif axis == "epochs":
            found[axis] = at * value[-1] / max(known[-1], 1.0)
        else:
            found[axis] = np.interp(at, known, value)
    return found
