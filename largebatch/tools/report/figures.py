"""Figures as data, which the page draws."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Positions = Mapping[str, np.ndarray]
"""Axis (see `series.AXES`) → positions of the points, `[points]`; NaN where unknown."""
HEAT = "viridis"
"""Matplotlib's colour map of heat maps."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve."""

    label: str
    colour: int  # from 0: --s1 to --s8 of page.css, then the same with other dashes
    x: Positions
    y: np.ndarray  # [points]; NaN leaves a gap
    band: tuple[np.ndarray, np.ndarray] | None = None  # lower and upper edge, each [points]
    dots: bool = False  # whether each point has a dot
    noisy: bool = False  # whether the smoothing slider applies
    steps: bool = False  # whether a value holds until the next point


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves over one vertical axis."""

    title: str  # what the vertical axis measures, with its unit
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False  # whether the vertical axis starts at 0
    height: int = 210  # CSS pixels
    levels: tuple[tuple[float, str], ...] = ()  # horizontal lines, value and label


@dataclasses.dataclass(frozen=True)
class Marker:
    """A vertical line through all panels of a chart."""

    x: Positions  # [1]
    text: str  # label beside the line; may be empty
    bad: bool  # trouble; otherwise a restart


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels above each other that share the horizontal axis."""

    key: str  # unique within the page
    title: str
    caption: str
    panels: tuple[Panel, ...]
    axes: Mapping[str, str]  # label of each horizontal axis on which any point has a position
    marks: tuple[Marker, ...] = ()


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A quantity of each layer over time, coloured on a logarithmic scale."""

    key: str
    title: str
    caption: str
    names: tuple[str, ...]  # of the layers, from the top
    x: np.ndarray  # ends of the columns, ascending; the first column begins at 0 or before
    label: str  # of the horizontal axis
    values: np.ndarray  # [layers, columns], at least 0; NaN where unknown

    @property
    def scale(self) -> tuple[float, float]:
        """Ends of the colour scale: quantiles, so that an outlier does not hide the rest."""
        positive = self.values[np.isfinite(self.values) & (self.values > 0)]
        low, high = np.quantile(positive, (0.005, 0.995)) if positive.size else (1.0, 1.0)
        return (float(low), float(high)) if high > low else (0.5 * float(low), 2.0 * float(high))


@dataclasses.dataclass(frozen=True)
class Bars:
    """Horizontal bars of several parts."""

    key: str
    title: str
    caption: str
    rows: tuple[tuple[str, Mapping[str, float]], ...]  # title of each bar, and part → value
    colours: Mapping[str, int]  # part → number of its colour
    unit: str


Figure = Chart | HeatMap | Bars


def as_json(figure: Chart | HeatMap) -> dict[str, Any]:
    """Return a figure for the script of the page; numbers that are not finite are None."""
    found = _plain(dataclasses.asdict(figure))
    if isinstance(figure, HeatMap):
        found["low"], found["high"] = figure.scale
        found["values"] = [numbers(row, 3) for row in figure.values]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return numbers(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def numbers(values: Sequence[float] | np.ndarray, digits: int = 8) -> list[float | None]:
    """Return floats with a number of significant digits, None where a value is not finite."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]
