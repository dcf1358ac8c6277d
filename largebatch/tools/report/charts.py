"""Figures as data: curves, heat maps and bars, which the page and the PNG files both draw."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ByAxis = Mapping[str, np.ndarray]
"""Axis (see `series.AXES`) → where the points are on it, `[points]`; NaN where unknown."""
_CODES = 65_535
"""A value of a heat map is one of so many codes, in equal ratios; code 0 is an unknown value."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        label: name in the legend.
        colour: index among `palette.SERIES`; a larger one repeats the colours with other dashes.
        x: positions of the points.
        y: values, `[points]`; NaN leaves a gap.
        band: lower and upper edge of a band around the curve, each `[points]`; or None.
        dots: whether each point has a dot; without lines between them where `joined` is False.
        joined: whether points are joined.
        noisy: whether the smoothing slider applies.
        steps: whether a value holds until the next point.
    """

    label: str
    colour: int
    x: ByAxis
    y: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None
    dots: bool = False
    joined: bool = True
    noisy: bool = False
    steps: bool = False

    def as_json(self) -> dict[str, Any]:
        """The line for the page's script."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["x"] = {axis: numbers(x, 9) for axis, x in self.x.items() if np.isfinite(x).any()}
        found["y"] = numbers(self.y)
        found["band"] = self.band and [numbers(edge) for edge in self.band]
        return found


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves over one vertical axis.

    Attributes:
        title: what the vertical axis measures, with its unit.
        lines: the curves.
        log: whether the vertical axis is logarithmic.
        zero: whether it starts at 0.
        height: of the plot, in CSS pixels.
        levels: horizontal lines, value and label.
        rows: names of the values 0, 1, … where these are categories.
    """

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    zero: bool = False
    height: int = 210
    levels: tuple[tuple[float, str], ...] = ()
    rows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Mark:
    """A vertical line through all panels of a chart: a restart, or trouble.

    Attributes:
        x: its position on each axis, `[1]`.
        text: label beside the line; may be empty.
        bad: whether it marks trouble.
    """

    x: ByAxis
    text: str
    bad: bool


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels above each other that share the horizontal axis.

    Attributes:
        key: name of its file, unique within the page.
        title: a few words.
        caption: what is shown and how to read it.
        panels: from the top.
        axes: label of each horizontal axis that any point is known on.
        marks: vertical lines.
    """

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    axes: Mapping[str, str]
    marks: tuple[Mark, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The chart for the page's script."""
        panels = [
            {field.name: getattr(panel, field.name) for field in dataclasses.fields(panel)}
            | {"lines": [line.as_json() for line in panel.lines]}
            for panel in self.panels
        ]
        marks = [
            {
                "x": {axis: numbers(x, 9)[0] for axis, x in mark.x.items()},
                "text": mark.text,
                "bad": mark.bad,
            }
            for mark in self.marks
        ]
        return {"panels": panels, "axes": dict(self.axes), "marks": marks}


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A quantity of each layer over time, coloured on a logarithmic scale.

    Attributes:
        key: name of its file, unique within the page.
        title: a few words.
        caption: what is shown and how to read it.
        names: of the layers, from the top.
        x: ends of the columns, `[columns]`, ascending; the first column begins at 0 or before.
        label: of the horizontal axis.
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
        """Least and greatest coloured value: quantiles, or one outlier would hide the rest."""
        positive = self.values[np.isfinite(self.values) & (self.values > 0)]
        low, high = np.quantile(positive, (0.005, 0.995)) if positive.size else (1.0, 1.0)
        return (float(low), float(high)) if high > low else (0.5 * float(low), 2.0 * float(high))

    def as_json(self) -> dict[str, Any]:
        """The map for the page's script; values as 16-bit codes over their whole range."""
        known = np.isfinite(self.values) & (self.values > 0)
        ends = self.values[known] if known.any() else np.ones(1)
        least, ratio = float(ends.min()), float(np.log(ends.max() / ends.min())) or 1.0
        codes = np.zeros(self.values.shape, "<u2")
        share = np.log(self.values[known] / least) / ratio
        codes[known] = 2 + np.round(share * (_CODES - 2))
        codes[self.values == 0] = 1
        low, high = self.scale
        return {
            "names": self.names,
            "x": numbers(self.x, 9),
            "label": self.label,
            "low": low,
            "high": high,
            "least": least,
            "ratio": ratio,
            "codes": base64.b64encode(codes.tobytes()).decode(),
        }


@dataclasses.dataclass(frozen=True)
class Bars:
    """Horizontal bars of one or several parts.

    Attributes:
        key: name of its file, unique within the page.
        title: a few words.
        caption: what is shown and how to read it.
        rows: title of each bar and its parts, name → value.
        colours: of each part, index among `palette.SERIES`.
        unit: of the values.
    """

    key: str
    title: str
    caption: str
    rows: tuple[tuple[str, Mapping[str, float]], ...]
    colours: Mapping[str, int]
    unit: str


Figure = Chart | HeatMap | Bars


def numbers(values: Sequence[float] | np.ndarray, digits: int = 6) -> list[float | None]:
    """Floats with a limited number of significant digits; None where a value is not finite."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]
