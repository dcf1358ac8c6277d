"""Figures as data, which the page and the PNG files both draw."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Positions = Mapping[str, np.ndarray]
"""Axis (see `series.AXES`) → positions of the points, `[points]`; NaN where unknown."""


SERIES = 8
"""Number of colours of curves: the variables --s1, --s2, … of page.css."""
HEAT = "viridis"
"""Matplotlib's colour map of heat maps."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        label: name in the legend.
        colour: number of its colour from 0; after SERIES of them other dashes begin.
        x: positions of the points.
        y: values, `[points]`; NaN leaves a gap.
        band: lower and upper edge of a band around the curve, each `[points]`.
        dots: whether each point has a dot.
        noisy: whether the smoothing slider applies.
        steps: whether a value holds until the next point.
    """

    label: str
    colour: int
    x: Positions
    y: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    dots: bool = False
    noisy: bool = False
    steps: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves over one vertical axis.

    Attributes:
        title: what the vertical axis measures, with its unit.
        lines: the curves.
        log: whether the vertical axis is logarithmic.
        zero: whether it starts at 0.
        height: height of the plot in CSS pixels.
        levels: horizontal lines, value and label.
    """

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False
    height: int = 210
    levels: tuple[tuple[float, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Marker:
    """A vertical line through all panels of a chart.

    Attributes:
        x: its position on each axis, `[1]`.
        text: label beside the line; may be empty.
        bad: whether it marks trouble; otherwise a restart.
    """

    x: Positions
    text: str
    bad: bool


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels above each other that share the horizontal axis.

    Attributes:
        key: name of its PNG file, unique within the page.
        title: a few words.
        caption: what the chart shows and how to read it.
        panels: from the top.
        axes: label of each horizontal axis on which any point has a position.
        marks: vertical lines.
    """

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    axes: Mapping[str, str]
    marks: tuple[Marker, ...] = ()


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A quantity of each layer over time, coloured on a logarithmic scale.

    Attributes:
        key: name of its PNG file, unique within the page.
        title: a few words.
        caption: what the map shows and how to read it.
        names: names of the layers, from the top.
        x: ends of the columns, `[columns]`, ascending; the first column begins at 0 or before.
        label: label of the horizontal axis.
        values: `[layers, columns]`, at least 0; NaN where unknown.
    """

    key: str
    title: str
    caption: str
    names: tuple[str, ...]
    x: np.ndarray
    label: str
    values: np.ndarray

    @property
    def scale(self) -> tuple[float, float]:
        """Ends of the colour scale: quantiles, so that an outlier does not hide the rest."""
        positive = self.values[np.isfinite(self.values) & (self.values > 0)]
        low, high = np.quantile(positive, (0.005, 0.995)) if positive.size else (1.0, 1.0)
        return (float(low), float(high)) if high > low else (0.5 * float(low), 2.0 * float(high))


@dataclasses.dataclass(frozen=True)
class Bars:
    """Horizontal bars of one or several parts.

    Attributes:
        key: name of its PNG file, unique within the page.
        title: a few words.
        caption: what the bars show and how to read them.
        rows: title of each bar and its parts, name → value.
        colours: number of the colour of each part.
        unit: unit of the values.
    """

    key: str
    title: str
    caption: str
    rows: tuple[tuple[str, Mapping[str, float]], ...]
    colours: Mapping[str, int]
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
