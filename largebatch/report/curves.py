"""Figures of what changes from step to step: loss, accuracy, rates, throughput."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from largebatch.report import palette
from largebatch.report.axes import (
    counted,
    few,
    finish,
    height,
    legend,
    plain_log,
    run_label,
    unit_of,
)
from largebatch.report.canvas import Axes, Drawing, panels
from largebatch.report.runs import Run
from largebatch.report.seeds import complete, interval
from largebatch.report.series import AXES, against, curve, place
from largebatch.report.shapes import is_number
from largebatch.report.turns import marks

_POINTS = 4_000
"""Of a figure, all its curves together; each is drawn against three axes."""
_SPREAD = 20.0
"""A loss with such a ratio of its ends is drawn on a logarithmic axis: one spike hides the rest."""
_TROUBLE = ("skipped", "rollback", "unhealthy")
_SCHEDULE = (
    ("learning_rate", "learning rate"),
    ("momentum", "momentum"),
    ("batch", "batch, images"),
    ("image_size", "image size, pixels"),
)


def figures(runs: Sequence[Run]) -> list[Drawing]:
    """Those for which any run has what they show."""
    several = len(runs) > 1
    how = "a colour for each run" if several else "blue: training, orange: validation"
    lines = (
        " Thin upright lines: grey where a turn begins, red where a step was skipped, rolled back "
        "or the run ended unhealthy."
    )
    wanted = (
        ("loss", ("loss",), "Loss", f"In nats an image; {how}.", _loss),
        ("top1", ("top1", "validation/top1"), "Top-1 accuracy", f"{how.capitalize()}.", _top1),
        (
            "schedule",
            tuple(name for name, _ in _SCHEDULE),
            "Schedule",
            "What each step was made with: learning rate, momentum, images in a step and their "
            "size.",
            _schedule,
        ),
        (
            "throughput",
            ("images_per_s", "input_wait"),
            "Throughput and waits",
            "Images a second since the row before, without compiling, evaluations and "
            "checkpoints; below it, the share of that time that training waited for data. Near 0 % "
            "the input keeps up.",
            _throughput,
        ),
        (
            "gradient",
            ("gradient_norm",),
            "Gradient norm",
            "Of all parameters together, before the optimizer. A sudden climb comes before a "
            "divergence.",
            _gradient_norm,
        ),
    )
    found = []
    for key, columns, title, caption, draw in wanted:
        if any(run.metrics.having(name).any() for run in runs for name in columns):
            more = lines if key in ("loss", "top1") and not several else ""
            drawing = _on(draw, runs)
            found.append(Drawing(key, title, caption + more, drawing, _axes(runs)))
    return found


def over_seeds(groups: Sequence[Sequence[Run]]) -> Drawing | None:
    """Validation accuracy as mean and interval over seeds, of each recipe that has several.

    Only complete runs count: one that broke off early would leave few evaluations in common.
    """
    whole = [(complete(group), len(group)) for group in groups]
    shown = [(group, count) for group, count in whole if len(group) > 1 and _common(group)[0].size]
    if not shown:
        return None

    def draw(axis: str) -> Any:
        made, (ax,) = panels(1, 2.6)
        unit = unit_of(axis, [run for group, _ in shown for run in group])
        for index, (group, count) in enumerate(shown):
            samples, values = _common(group)
            found = [interval(list(column)) for column in values.T]
            mean = np.array([100 * each.mean for each in found])
            half = np.array([100 * (each.half or 0.0) for each in found])
            x, colour = place(group[0].metrics, samples, axis) / unit[0], palette.series(index)
            ax.fill_between(
                x, np.maximum(mean - half, 0), np.minimum(mean + half, 100), color=colour, alpha=0.2
            )
            name = run_label(f"{group[0].name} and {len(group) - 1} more")
            label = f"{name}, {len(group)} of {count} seeds"
            ax.plot(x, mean, color=colour, marker="o", markersize=2.5, label=label)
        ax.set(ylabel="validation top-1, %")
        ax.legend(loc="lower right")
        finish([ax], axis, unit)
        return made

    caption = (
        "Mean over complete runs that differ in run.seed only; the band is the 95 % interval of "
        "Student's t for that mean, at the evaluations that all of them have."
    )
    return Drawing("seeds", "Top-1 over seeds", caption, draw, AXES)


def _common(group: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Samples `[n]` at which all were evaluated, and accuracies `[runs, n]`."""
    name = "validation/top1"
    found = [
        {
            row["samples"]: row[name]
            for row in run.metrics
            if is_number(row.get(name)) and is_number(row.get("samples"))
        }
        for run in group
    ]
    samples = sorted(set(found[0]).intersection(*found[1:]))
    return np.array(samples, np.float64), np.array([[f[s] for s in samples] for f in found])


def _on(draw: Callable[[Sequence[Run], str, list[Axes]], Any], runs: Sequence[Run]) -> Any:
    return lambda axis: draw(runs, axis)


def _axes(runs: Sequence[Run]) -> tuple[str, ...]:
    return tuple(a for a in AXES if any(np.isfinite(against(r.metrics, a)).any() for r in runs))


def _loss(runs: Sequence[Run], axis: str) -> Any:
    made, (ax,) = panels(1, height(runs))
    unit = unit_of(axis, runs)
    _pair(ax, runs, axis, unit, "loss", 1.0)
    ax.set(ylabel="loss")
    low, high = ax.dataLim.intervaly
    if np.isfinite([low, high]).all() and low > 0 and high > _SPREAD * low:
        plain_log(ax.yaxis)
    finish([ax], axis, unit)
    return made


def _top1(runs: Sequence[Run], axis: str) -> Any:
    made, (ax,) = panels(1, height(runs))
    unit = unit_of(axis, runs)
    targets = [run.summary.get("target_top1") or run.options.get("run.target") for run in runs]
    for target in sorted({t for t in targets if is_number(t) and t > 0}):
        look = {"color": palette.MUTED.light, "linewidth": 1, "linestyle": (0, (4, 3))}
        ax.axhline(100 * target, label=f"target {100 * target:g} %", **look)
    _pair(ax, runs, axis, unit, "top1", 100.0)
    ax.set(ylabel="top-1, %")
    finish([ax], axis, unit)
    return made


def _schedule(runs: Sequence[Run], axis: str) -> Any:
    shown = [each for each in _SCHEDULE if any(run.metrics.having(each[0]).any() for run in runs)]
    made, axes = panels(len(shown), 0.35 + 1.2 * len(shown), sharex=True)
    unit = unit_of(axis, runs)
    for ax, (name, title) in zip(axes, shown, strict=True):
        # Rates change with every step; batch and size stay until a stage ends.
        style = "steps-post" if name in ("batch", "image_size") else "default"
        _each(ax, runs, axis, unit, name, drawstyle=style, points=_POINTS // len(shown))
        ax.set_title(title, fontsize=8.5, fontweight="normal", color=palette.MUTED.light)
        low, high = ax.dataLim.intervaly
        if low == high:
            ax.set_ylim(0, 1.5 * high or 1)
        elif low >= 0:
            ax.set_ylim(0, 1.08 * high)
        ax.yaxis.set_major_locator(few(3))
        ax.yaxis.set_major_formatter(counted if high >= 1_000 else "{x:g}")
    finish(axes, axis, unit)
    return made


def _throughput(runs: Sequence[Run], axis: str) -> Any:
    made, (rate, wait) = panels(2, 2.7, sharex=True, height_ratios=(3, 2))
    unit = unit_of(axis, runs)
    _each(rate, runs, axis, unit, "images_per_s", points=_POINTS // 2)
    _each(wait, runs, axis, unit, "input_wait", 100.0, points=_POINTS // 2)
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter(counted)
    wait.set_ylim(0, max(5.0, 1.05 * wait.dataLim.y1) if wait.lines else 100)
    for ax, title in ((rate, "images a second"), (wait, "waiting for data, %")):
        ax.set_title(title, fontsize=8.5, fontweight="normal", color=palette.MUTED.light)
    finish([rate, wait], axis, unit)
    return made


def _gradient_norm(runs: Sequence[Run], axis: str) -> Any:
    made, (ax,) = panels(1, 2.0)
    unit = unit_of(axis, runs)
    _each(ax, runs, axis, unit, "gradient_norm")
    low = ax.dataLim.y0
    if np.isfinite(low) and low > 0:
        plain_log(ax.yaxis)
    ax.set(ylabel="norm of the gradient")
    finish([ax], axis, unit)
    return made


def _pair(
    ax: Axes, runs: Sequence[Run], axis: str, unit: tuple[float, str], name: str, scale: float
) -> None:
    """A quantity in training, thin, and in validation, with a dot at each evaluation."""
    points = _POINTS // (2 * len(runs))
    for index, run in enumerate(runs):
        one = len(runs) == 1
        if one:
            _lines(ax, run, axis, unit)
        look = {"linestyle": palette.dash(index)}
        x, y = curve(run.metrics, name, axis, points)
        colour = palette.series(0 if one else index)
        label = "training" if one else None
        thin = {"linewidth": 1.2 if one else 0.9, "alpha": 1.0 if one else 0.45}
        ax.plot(x / unit[0], scale * y, color=colour, label=label, **thin, **look)
        x, y = curve(run.metrics, f"validation/{name}", axis, points)
        colour, label = (
            palette.series(1 if one else index),
            "validation" if one else run_label(run.name),
        )
        ax.plot(x / unit[0], scale * y, color=colour, label=label, marker="o", markersize=3, **look)
    legend(ax)


def _each(
    ax: Axes,
    runs: Sequence[Run],
    axis: str,
    unit: tuple[float, str],
    name: str,
    scale: float = 1.0,
    points: int = _POINTS,
    **look: Any,
) -> None:
    """A column of each run."""
    for index, run in enumerate(runs):
        x, y = curve(run.metrics, name, axis, points // len(runs))
        ax.plot(
            x / unit[0],
            scale * y,
            color=palette.series(index),
            linestyle=palette.dash(index),
            linewidth=1.2,
            **look,
        )


def _lines(ax: Axes, run: Run, axis: str, unit: tuple[float, str]) -> None:
    """Where turns began and where it went wrong."""
    happened = [m for m in marks(run.events) if m.kind in _TROUBLE or (m.kind == "turn" and m.step)]
    at = place(run.metrics, [mark.samples for mark in happened], axis) / unit[0]
    drawn = set()
    for mark, x in zip(happened, at, strict=True):
        colour = palette.BAD if mark.kind in _TROUBLE else palette.MUTED
        if np.isfinite(x) and (round(float(x), 6), colour) not in drawn and len(drawn) < 200:
            drawn.add((round(float(x), 6), colour))
            ax.axvline(x, color=colour.light, linewidth=0.8, alpha=0.6)
