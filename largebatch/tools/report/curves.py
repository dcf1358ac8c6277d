"""Charts of what changes from step to step: loss, accuracy, schedule, throughput, events."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from largebatch.tools.report.array_summaries import is_number
from largebatch.tools.report.charts import Chart, Line, Mark, Panel
from largebatch.tools.report.runs import Run
from largebatch.tools.report.seeds import complete, interval
from largebatch.tools.report.series import AXES, against, curve, place, pooled
from largebatch.tools.report.turns import FAILED, KINDS, RESTART, TROUBLE, marks

_POINTS = 4_000
"""Of all curves of a panel together."""
_SPREAD = 20.0
"""A loss whose ends have such a ratio is drawn on a logarithmic axis: one spike hides the rest."""
_DOTS = 40
"""A curve of at most so many points shows each of them."""
_LABELLED = 3
"""More marks than this are drawn without a label."""
_MARKS = 200
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_SCHEDULE = (
    ("learning_rate", "learning rate", ""),
    ("momentum", "momentum", ""),
    ("batch", "batch, images", " images"),
    ("image_size", "image size, pixels", " px"),
)
_STEPPED = ("batch", "image_size")
"""They hold until a stage ends."""


def figures(runs: Sequence[Run], labels: Sequence[str]) -> list[Chart]:
    """Return the charts for which any run has data, one curve a run where there are several.

    Args:
        runs: one or more.
        labels: name of each run in the legends.
    """
    made = _Charts(runs, labels)
    one = len(runs) == 1
    how = "Blue: training; orange: validation." if one else "Training above, validation below."
    lines = " Vertical lines: grey, a restart; red, a skipped step, a rollback or a failure."
    loss = made.pair("loss", "loss", 1.0, log=True)
    top1 = made.pair("top1", "top-1, %", 100.0)
    varying, constant = made.schedule()
    found = [
        made.chart("loss", "Loss", f"{how}{lines * one}", loss),
        made.chart("top1", "Top-1 accuracy", f"{how}{lines * one}", top1),
        made.chart(
            "schedule",
            "Schedule",
            f"As used in each step.{constant}",
            varying,
        ),
        made.chart(
            "throughput",
            "Throughput and input wait",
            "Images/s of training, without compilation, evaluation and checkpoints, and the share "
            "of that time in which training waited for data. Each point is the median of at least "
            "0.5 s of rows; the band holds 80 % of them.",
            made.throughput(),
        ),
        made.chart(
            "gradient",
            "Gradient norm",
            "Of all parameters together, before the optimizer. A sudden rise precedes a "
            "divergence.",
            made.each("gradient_norm", "gradient norm", log=True, noisy=True),
        ),
    ]
    return [chart for chart in found if chart is not None]


def over_seeds(groups: Sequence[Sequence[Run]]) -> Chart | None:
    """Return validation accuracy as mean and interval over seeds, a curve for each recipe.

    Only complete runs count: one that ended early would leave few evaluations in common.
    """
    whole = [(complete(group), len(group)) for group in groups]
    shown = [(group, count) for group, count in whole if len(group) > 1 and _common(group)[0].size]
    if not shown:
        return None
    every = [run for group, _ in shown for run in group]
    made = _Charts(every, [run.name for run in every])
    lines = []
    for index, (group, count) in enumerate(shown):
        samples, values = _common(group)
        found = [interval(list(column)) for column in values.T]
        mean = np.array([100 * each.mean for each in found])
        half = np.array([100 * (each.half or 0.0) for each in found])
        name = f"{group[0].name} and {len(group) - 1} more, {len(group)} of {count} seeds"
        x = {axis: place(group[0].metrics, samples, axis) for axis in AXES}
        band = (np.maximum(mean - half, 0), np.minimum(mean + half, 100))
        lines.append(Line(name, index, made.scaled(x), mean, band, dots=True))
    caption = (
        "Mean over complete runs that differ in run.seed only; the band is the 95 % interval of "
        "Student's t for that mean, at the evaluations that all of them have."
    )
    panel = Panel("validation top-1, %", tuple(lines))
    return made.chart("seeds", "Top-1 over seeds", caption, [panel])


def of_events(run: Run) -> Chart | None:
    """Return a chart with a dot for each event of a run."""
    happened = [mark for mark in marks(run.events) if mark.kind in KINDS]
    if not happened:
        return None
    kinds = [kind for kind in KINDS if any(mark.kind == kind for mark in happened)]
    made, lines = _Charts([run], [run.name]), []
    for row, kind in enumerate(kinds):
        samples = np.unique([mark.samples for mark in happened if mark.kind == kind])
        x = {axis: place(run.metrics, samples, axis) for axis in AXES}
        level = np.full(len(samples), float(row))
        lines.append(Line(kind, KINDS[kind], made.scaled(x), level, dots=True, joined=False))
    panel = Panel("", tuple(lines), rows=tuple(kinds), height=40 + 24 * len(kinds))
    caption = "Pauses between run attempts are left out of the time. The list below has details."
    return made.chart("events", "Events", caption, [panel])


class _Charts:
    """Curves of the same runs, with their units of time and their marks."""

    def __init__(self, runs: Sequence[Run], labels: Sequence[str]) -> None:
        self.runs, self.labels = runs, labels
        times = [against(run.metrics, "time") for run in runs]
        longest = max((float(np.nanmax(x)) for x in times if np.isfinite(x).any()), default=0.0)
        self.unit, unit = next((unit, name) for least, unit, name in _UNITS if longest >= least)
        self.axes = {
            axis: unit if axis == "time" else axis
            for axis in AXES
            if any(np.isfinite(against(run.metrics, axis)).any() for run in runs)
        }

    def scaled(self, x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Positions in the units of the axes."""
        return {axis: found / self.unit if axis == "time" else found for axis, found in x.items()}

    def chart(self, key: str, title: str, caption: str, panels: Sequence[Panel]) -> Chart | None:
        """A chart, or None without panels that have a curve."""
        panels = tuple(panel for panel in panels if panel.lines)
        if not panels:
            return None
        alone = len(self.runs) == 1 and key != "events"
        marked = self._marks(labelled=key in ("loss", "top1")) if alone else ()
        return Chart(key, title, caption, panels, self.axes, marked)

    def pair(self, name: str, title: str, scale: float, *, log: bool = False) -> list[Panel]:
        """A quantity in training and validation: one panel, or one each where runs are compared."""
        columns = (name, f"validation/{name}")
        if len(self.runs) > 1:
            titles = (f"training {title}", f"validation {title}")
            return [
                panel
                for number, (column, named) in enumerate(zip(columns, titles, strict=True))
                for panel in self.each(column, named, scale, log=log, noisy=number == 0)
            ]
        lines = [
            line
            for number, (column, label) in enumerate(
                zip(columns, ("training", "validation"), strict=True)
            )
            for line in self._lines(
                column, scale, [label], noisy=number == 0, colour=number, dots=number == 1
            )
        ]
        levels = self._targets() if name == "top1" else ()
        title = "cross-entropy of an image" if name == "loss" else title
        return [Panel(title, tuple(lines), log and _is_wide(lines), levels=levels)]

    def each(
        self, name: str, title: str, scale: float = 1.0, *, log: bool = False, noisy: bool = False
    ) -> list[Panel]:
        """A column of each run."""
        evaluated = name.startswith("validation/")
        lines = self._lines(name, scale, self._named(title), noisy=noisy, dots=evaluated)
        levels = self._targets() if name == "validation/top1" else ()
        return [Panel(title, tuple(lines), log and _is_wide(lines), levels=levels)]

    def schedule(self) -> tuple[list[Panel], str]:
        """Panels of what varies, and a sentence with what is constant."""
        varying, constant = [], []
        for name, title, unit in _SCHEDULE:
            columns = [run.metrics.column(name) for run in self.runs]
            found = [np.unique(column[np.isfinite(column)]) for column in columns]
            values = np.unique(np.concatenate(found)).tolist()
            if values and name != "learning_rate" and all(each.size < 2 for each in found):
                constant.append(f"{title.split(',')[0]} {_listed(values)}{unit}")
            elif values:
                lines = self._lines(name, 1.0, self._named(title), steps=name in _STEPPED)
                varying.append(Panel(title, tuple(lines), zero=values[0] >= 0, height=90))
        if varying:  # as high as the chart beside it
            first = dataclasses.replace(varying[0], height=265 if len(varying) == 1 else 150)
            varying = [first, *varying[1:]]
        return varying, f" Constant: {', '.join(constant)}." if constant else ""

    def throughput(self) -> list[Panel]:
        """Throughput and input wait over intervals of time."""
        wanted = (
            ("images_per_s", "images/s", 1.0, 140),
            ("input_wait", "input wait, %", 100.0, 90),
        )
        panels = []
        for name, title, scale, height in wanted:
            lines = []
            for index, (run, label) in enumerate(zip(self.runs, self._named(title), strict=True)):
                found = pooled(run.metrics, name)
                few = found.median.size <= _DOTS
                band = (scale * found.low, scale * found.high) if len(self.runs) == 1 else None
                x = self.scaled(found.x)
                if found.median.size:
                    lines.append(Line(label, index, x, scale * found.median, band, dots=few))
            panels.append(Panel(title, tuple(lines), zero=True, height=height))
        return panels

    def _named(self, title: str) -> Sequence[str]:
        """Names in the legend: of the runs, or of the quantity where there is one run."""
        return self.labels if len(self.runs) > 1 else [title]

    def _lines(
        self,
        name: str,
        scale: float,
        labels: Sequence[str],
        *,
        noisy: bool = False,
        colour: int = 0,
        dots: bool = False,
        steps: bool = False,
    ) -> list[Line]:
        lines = []
        for index, (run, label) in enumerate(zip(self.runs, labels, strict=True)):
            x, y = curve(run.metrics, name, max(50, _POINTS // len(self.runs)))
            if np.isfinite(y).any():
                shown = (dots and y.size <= 5 * _DOTS) or y.size <= _DOTS
                lines.append(
                    Line(
                        label,
                        colour + index,
                        self.scaled(x),
                        scale * y,
                        dots=shown,
                        noisy=noisy,
                        steps=steps,
                    )
                )
        return lines

    def _targets(self) -> tuple[tuple[float, str], ...]:
        found = [r.summary.get("target_top1") or r.options.get("run.target") for r in self.runs]
        wanted = sorted({float(t) for t in found if is_number(t) and t > 0})
        return tuple((100 * target, f"target {100 * target:g} %") for target in wanted)

    def _marks(self, *, labelled: bool) -> tuple[Mark, ...]:
        """Restarts, and where it went wrong."""
        (run,) = self.runs
        shown = [
            m for m in marks(run.events) if m.kind in TROUBLE or (m.kind == RESTART and m.step)
        ]
        found = []
        for mark in list({(mark.step, mark.kind): mark for mark in shown}.values())[-_MARKS:]:
            x = {axis: place(run.metrics, [mark.samples], axis) for axis in AXES}
            named = labelled and (len(shown) <= _LABELLED or mark.kind == FAILED)
            text = f"{mark.kind}, step {mark.step:,}" if named else ""
            found.append(Mark(self.scaled(x), text, mark.kind in TROUBLE))
        return tuple(found)


def _listed(values: Sequence[float]) -> str:
    """Values in ascending order; of many, the ends."""
    shown = [f"{value:,.6g}" for value in values]
    return " / ".join(shown) if len(shown) < 5 else f"{shown[0]} to {shown[-1]}"


def _is_wide(lines: Sequence[Line]) -> bool:
    """Whether a logarithmic axis is needed, and possible."""
    known = [line.y[np.isfinite(line.y)] for line in lines]
    values = np.concatenate(known) if known else np.empty(0)
    return bool(values.size and values.min() > 0 and values.max() > _SPREAD * values.min())


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
