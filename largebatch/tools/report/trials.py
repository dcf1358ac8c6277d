"""Figures of a sweep: the importance of its axes, and every trial as a line through its values."""

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from largebatch.errors import DataError
from largebatch.tools.report.charts import Bars, Drawing, Figure
from largebatch.tools.report.runs import Run
from largebatch.tools.sweep import results
from largebatch.tools.sweep.trial import Trial, is_accuracy

_COLUMN, _HEIGHT, _MARGIN = 130, 280, 60
"""Of the drawing, in CSS pixels: from axis to axis, length of an axis, around them."""
_LOG = 10.0
"""An axis whose ends have at least this ratio is logarithmic."""
_LABELS = 8
"""An axis with more values names its ends only."""


class Axis(NamedTuple):
    """A vertical axis."""

    name: str
    places: tuple[float, ...]  # of each trial, 0 is the lower end and 1 the upper
    labels: tuple[tuple[float, str], ...]  # place and text


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures of the trials of one sweep with a finite objective; none of other runs."""
    if len({run.path.parent for run in runs}) > 1 or not all(run.trial for run in runs):
        return []
    workdir = runs[0].path.parent.parent
    found = [run.trial for run in runs if run.trial.value is not None]
    found = [trial for trial in found if math.isfinite(trial.value)]
    try:
        objective = str(results.read_description(workdir).get("objective", ""))
    except DataError:
        return []
    if not found or not objective:
        return []
    drawn = Drawing(
        "parallel",
        "Trials",
        "Each line is a trial with a finite objective; the stronger, the better, and the best in "
        "orange. Axes whose ends differ by a factor of 10 are logarithmic.",
        _parallel(found, objective),
    )
    return [drawn, *_importance(workdir, objective)]


def _importance(workdir: Path, objective: str) -> list[Figure]:
    shares = results.read_importance(workdir)
    if not shares:
        return []
    caption = (
        "Share of the variance of the objective that each axis explains, by fANOVA (Hutter et al. "
        "2014). With few trials it is only a hint."
    )
    rows = tuple((name, {"share": 100 * share}) for name, share in shares.items())
    unit = f"% of the variance of {objective}"
    return [Bars("importance", "Importance of the axes", caption, rows, {"share": 0}, unit)]


def _parallel(trials: Sequence[Trial], objective: str) -> str:
    """Return the drawing as SVG; its colours are variables of the page."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    names = results.short_names(keys)
    texts = [[trial.values.get(key, "") for trial in trials] for key in keys]
    axes = [axis_of(name, values) for name, values in zip(names, texts, strict=True)]
    values = [trial.value for trial in trials]
    axes.append(_on_scale(objective, values, lambda x: results.objective_text(x, objective)))
    quality = [p if is_accuracy(objective) else 1 - p for p in axes[-1].places]
    order = sorted(range(len(trials)), key=quality.__getitem__)  # the best is drawn last
    lines = ""
    for index in order:
        points = " ".join(
            f"{_x(number):.0f},{_y(axis.places[index]):.1f}" for number, axis in enumerate(axes)
        )
        is_best = index == order[-1]
        style = "stroke:var(--s2);stroke-width:2.5" if is_best else "stroke:var(--s1)"
        opacity = 1 if is_best else 0.15 + 0.85 * quality[index]
        said = escape(results.line(trials[index], objective))
        lines += (
            f'<polyline points="{points}" style="{style};stroke-opacity:{opacity:.2f}">'
            f"<title>{said}</title></polyline>"
        )
    width = 2 * _MARGIN + _COLUMN * (len(axes) - 1)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Trials">'
        f'<svg class="parallel" viewBox="0 0 {width} {_HEIGHT + _MARGIN}" '
        f'style="min-width:{width}px">{lines}{"".join(map(_drawn, range(len(axes)), axes))}'
        "</svg></div>"
    )


def _x(number: int) -> float:
    return _MARGIN + _COLUMN * number


def _y(place: float) -> float:
    return _MARGIN / 2 + _HEIGHT * (1 - place)


def _drawn(number: int, axis: Axis) -> str:
    x = _x(number)
    labels = "".join(
        f'<text x="{x + 5:.0f}" y="{_y(place) + 4:.1f}">{escape(text)}</text>'
        for place, text in axis.labels
    )
    name = f'<text class="name" x="{x:.0f}" y="16">{escape(axis.name)}</text>'
    return f'<path d="M{x:.0f},{_y(0):.1f}V{_y(1):.1f}"/>{name}{labels}'


def axis_of(name: str, texts: Sequence[str]) -> Axis:
    """Return the axis of an option: a scale for numbers of one unit, else one place a value."""
    numbers = [_number(text) for text in texts]
    if None not in numbers and len({unit for _, unit in numbers}) == 1:
        unit = numbers[0][1]
        return _on_scale(name, [n for n, _ in numbers], lambda x: f"{x:g} {unit}".strip())
    distinct = list(dict.fromkeys(sorted(texts)))
    at = {
        text: i / (len(distinct) - 1) if len(distinct) > 1 else 0.5
        for i, text in enumerate(distinct)
    }
    return Axis(name, tuple(at[text] for text in texts), tuple((at[t], t) for t in distinct))


def _number(text: str) -> tuple[float, str] | None:
    """Return the number and the unit of a value such as ``5 epochs``; None of another value."""
    number, _, unit = text.partition(" ")
    try:
        return float(number), unit
    except ValueError:
        return None


def _on_scale(name: str, values: Sequence[float], shown: Callable[[float], str]) -> Axis:
    low, high = min(values), max(values)
    scale = math.log if low > 0 and high >= _LOG * low else float

    def place(value: float) -> float:
        if low == high:
            return 0.5
        return (scale(value) - scale(low)) / (scale(high) - scale(low))

    distinct = sorted(set(values))
    named = distinct if len(distinct) <= _LABELS else [low, high]
    return Axis(name, tuple(map(place, values)), tuple((place(v), shown(v)) for v in named))
