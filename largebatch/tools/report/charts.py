"""Figures of runs as data: curves, seeds, bars of time, heat maps of layers."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.tools.report.compare import complete, further_columns, interval
from largebatch.tools.report.runs import (
    AXES,
    FAILED,
    PARTS,
    RESTART,
    TROUBLE,
    Row,
    Run,
    attempts_of,
    curve,
    marks,
    place,
)

_POINTS = 4_000
"""Most points of all curves of a panel together."""
_SPREAD = 20.0
"""A loss whose ends have a larger ratio gets a logarithmic axis."""
_DOTS = 40
"""A curve of at most this number of points shows each of them."""
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
_SPENT = dict(zip(PARTS, (4, 1, 0, 2, 3, 7), strict=True))
"""Colour of each part of the time."""
LEAST_ROWS = 8
"""A map needs this number of rows of `layers.jsonl`."""
COLUMNS = 300
"""Most columns of a map; a page has few more pixels for it."""
_KERNEL = "/kernel"
_NORMS = (
    (
        "trust_ratio",
        "Trust ratios",
        "The factor by which LARS scales the learning rate of each layer's weights. A falling "
        "ratio means that the gradient grows against the weights, or that these shrink. A layer "
        "much darker than its neighbours hardly learns.",
    ),
    (
        "weight_norm",
        "Weight norms",
        "Norm of each layer's weights. With weight decay it grows early and settles; if it keeps "
        "growing, the layer's effective learning rate falls.",
    ),
    (
        "gradient_norm",
        "Gradient norms",
        "Norm of each layer's gradient at the logged step. A bright column is one bad step, a "
        "bright row one bad layer.",
    ),
)
_DRIFT = (
    (
        "bn_mean",
        "BatchNorm means: drift",
        "Change of the moving mean since the row before, in standard deviations: |m − m before| / "
        "√v, where m is the root mean square over features. The first row is compared with 0.",
    ),
    (
        "bn_variance",
        "BatchNorm variances: drift",
        "Relative change of the moving variance since the row before: |ln(v / v before)|, where v "
        "is the geometric mean over features. The first row is compared with 1. If the map is dark "
        "at the end, the statistics of the evaluation have settled.",
    ),
)

Positions = Mapping[str, np.ndarray]
"""Axis (see `runs.AXES`) → positions of the points, `[points]`; NaN where unknown."""


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


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure that needs no script."""

    key: str
    title: str
    caption: str
    html: str


Figure = Chart | HeatMap | Bars | Drawing


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


def of_training(runs: Sequence[Run], labels: Sequence[str]) -> list[Chart]:
    """Return the charts for which any run has data; several runs have one curve each.

    Args:
        runs: one or more.
        labels: name of each run in the legends.
    """
    made = _Charts(runs, labels)
    how = "Training above, validation below."
    if len(runs) == 1:
        how = (
            "Blue: training; orange: validation; others: averaged weights and further validation "
            "sets. Vertical lines: grey, a restart; red, a skipped step, a rollback or a failure."
        )
    varying, constant = made.schedule()
    rate = made.each("images_per_s", "images/s", noisy=True, zero=True, height=140)
    wait = made.each("input_wait", "input wait, %", 100.0, noisy=True, zero=True, height=90)
    found = [
        made.chart("loss", "Loss", how, made.pair("loss", "loss", 1.0, log=True)),
        made.chart("top1", "Top-1 accuracy", how, made.pair("top1", "top-1, %", 100.0)),
        made.chart("schedule", "Schedule", f"As used in each step.{constant}", varying),
        made.chart(
            "throughput",
            "Throughput and input wait",
            "Images/s of training, without compilation, evaluation and checkpoints, and the share "
            "of that time in which training waited for data.",
            [rate, wait],
        ),
        made.chart(
            "gradient",
            "Gradient norm",
            "Norm over all parameters, before the optimizer. A sudden rise precedes a divergence.",
            [made.each("gradient_norm", "gradient norm", log=True, noisy=True)],
        ),
        made.chart(
            "noise",
            "Gradient noise scale and batch",
            "A batch far below the noise scale wastes steps, one far above it wastes images: a "
            "training with SGD needs 1 + batch / noise scale times the images of a small batch.",
            made.noise(),
        ),
    ]
    return [chart for chart in found if chart is not None]


def over_seeds(groups: Sequence[Sequence[Run]]) -> Chart | None:
    """Return validation accuracy as mean and interval over seeds, a curve for each group.

    Only complete runs count, at the evaluations that all of them have.
    """
    counted = [(complete(group), len(group)) for group in groups]
    shown = [
        (group, count) for group, count in counted if len(group) > 1 and _common(group)[0].size
    ]
    every = [run for group, _ in shown for run in group]
    made, lines = _Charts(every, [run.name for run in every]), []
    for index, (group, count) in enumerate(shown):
        samples, values = _common(group)
        found = [interval(list(column)) for column in values.T]
        mean = np.array([100 * each.mean for each in found])
        half = np.array([100 * (each.half or 0.0) for each in found])
        name = f"{group[0].name} and {len(group) - 1} more, {len(group)} of {count} seeds"
        band = (np.maximum(mean - half, 0), np.minimum(mean + half, 100))
        x = made.scaled(place(group[0].metrics, samples))
        lines.append(Line(name, index, x, mean, band, dots=True))
    caption = (
        "Mean over complete runs that differ in run.seed only. The band is the 95 % interval of "
        "Student's t for that mean, at the evaluations that all of them have."
    )
    panel = Panel("validation top-1, %", tuple(lines))
    return made.chart("seeds", "Top-1 over seeds", caption, [panel])


def of_time(run: Run) -> Bars | None:
    """Return what each run attempt spent its time on."""
    attempts = enumerate(attempts_of(run.events), 1)
    found = [(f"attempt {number}", times) for number, (_, times) in attempts if times]
    longest = max((sum(parts.values()) for _, parts in found), default=0.0)
    if not longest:
        return None
    unit, name = (60.0, "minutes") if longest >= 300 else (1.0, "seconds")
    rows = tuple((title, {part: s / unit for part, s in parts.items()}) for title, parts in found)
    caption = (
        "Wall time of each run attempt. Step: training without its waits for data. Checkpoint: "
        "time that training waited for checkpoints. Other: start-up, restoring and the like."
    )
    return Bars("time", "Where the time went", caption, rows, _SPENT, name)


class _Charts:
    """Charts of the same runs, which share the unit of time."""

    def __init__(self, runs: Sequence[Run], labels: Sequence[str]) -> None:
        self.runs, self.labels = runs, labels
        columns = {
            axis: np.concatenate([[np.nan], *(run.metrics.column(name) for run in runs)])
            for axis, name in AXES.items()
        }
        longest = np.nanmax(columns["time"], initial=0.0)
        self.unit, unit = next((unit, name) for least, unit, name in _UNITS if longest >= least)
        self.axes = {
            axis: unit if axis == "time" else axis
            for axis, column in columns.items()
            if np.isfinite(column).any()
        }

    def scaled(self, x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return positions in the units of the axes."""
        return {axis: found / self.unit if axis == "time" else found for axis, found in x.items()}

    def chart(self, key: str, title: str, caption: str, panels: Sequence[Panel]) -> Chart | None:
        """Return a chart of the panels that have a curve; None if none has."""
        panels = tuple(panel for panel in panels if panel.lines)
        if not panels:
            return None
        return Chart(key, title, caption, panels, self.axes, self._markers())

    def pair(self, name: str, title: str, scale: float, *, log: bool = False) -> list[Panel]:
        """Return training and validation: in one panel for one run, else in one panel each."""
        columns = {"training": name, "validation": f"validation/{name}"}
        columns |= {kind: column for column, kind in further_columns(self.runs, name).items()}
        if len(self.runs) > 1:
            return [
                self.each(column, f"{kind} {title}", scale, log=log, noisy=column == name)
                for kind, column in columns.items()
            ]
        lines = [
            line
            for colour, (kind, column) in enumerate(columns.items())
            for line in self._lines(column, scale, [kind], noisy=column == name, colour=colour)
        ]
        title = "cross-entropy of an image" if name == "loss" else title
        levels = self._targets() if name == "top1" else ()
        return [Panel(title, tuple(lines), log and _is_wide(lines), levels=levels)]

    def each(
        self,
        name: str,
        title: str,
        scale: float = 1.0,
        *,
        log: bool = False,
        noisy: bool = False,
        steps: bool = False,
        **options: Any,
    ) -> Panel:
        """Return a panel with a column of each run; other options are those of `Panel`."""
        labels = self.labels if len(self.runs) > 1 else [title]
        lines = self._lines(name, scale, labels, noisy=noisy, steps=steps)
        levels = self._targets() if name == "validation/top1" else ()
        return Panel(title, tuple(lines), log and _is_wide(lines), levels=levels, **options)

    def noise(self) -> list[Panel]:
        """Return a panel with the noise scale, of a single run beside its batch."""
        panel = self.each("noise_scale", "noise scale", log=True)
        if len(self.runs) == 1 and panel.lines:
            batches = self.each("batch", "batch", steps=True).lines
            beside = tuple(dataclasses.replace(line, colour=1) for line in batches)
            panel = dataclasses.replace(panel, lines=panel.lines + beside)
        return [dataclasses.replace(panel, title="images")]

    def schedule(self) -> tuple[list[Panel], str]:
        """Return panels of what varies, and a sentence with what is constant."""
        varying: list[Panel] = []
        constant = []
        for name, title, unit in _SCHEDULE:
            columns = [run.metrics.column(name) for run in self.runs]
            found = [np.unique(column[np.isfinite(column)]) for column in columns]
            values = np.unique(np.concatenate(found)).tolist()
            if values and name != "learning_rate" and all(each.size < 2 for each in found):
                shown = " / ".join(f"{value:,.6g}" for value in values)
                constant.append(f"{title.split(',')[0]} {shown}{unit}")
            elif values:
                height = 90 if varying else 150
                steps = name in _STEPPED
                zero = values[0] >= 0
                varying.append(self.each(name, title, steps=steps, zero=zero, height=height))
        if len(varying) == 1:  # as high as the chart beside it
            varying = [dataclasses.replace(varying[0], height=265)]
        return varying, f" Constant: {', '.join(constant)}." if constant else ""

    def _lines(
        self,
        name: str,
        scale: float,
        labels: Sequence[str],
        *,
        noisy: bool = False,
        colour: int = 0,
        steps: bool = False,
    ) -> list[Line]:
        lines = []
        most_dots = 5 * _DOTS if "/" in name else _DOTS
        for index, (run, label) in enumerate(zip(self.runs, labels, strict=True), colour):
            x, y = curve(run.metrics, name, max(50, _POINTS // len(self.runs)))
            if np.isfinite(y).any():
                dots = y.size <= most_dots
                line = Line(label, index, self.scaled(x), scale * y, None, dots, noisy, steps)
                lines.append(line)
        return lines

    def _targets(self) -> tuple[tuple[float, str], ...]:
        found = [r.summary.get("target_top1") or r.options.get("run.target") for r in self.runs]
        return tuple((100 * t, f"target {100 * t:g} %") for t in sorted(set(filter(None, found))))

    def _markers(self) -> tuple[Marker, ...]:
        """Return restarts and trouble of the only run."""
        if len(self.runs) != 1:
            return ()
        (run,) = self.runs
        shown = [mark for mark in marks(run.events) if mark.kind in (*TROUBLE, RESTART)]
        return tuple(
            Marker(
                self.scaled(place(run.metrics, [mark.samples])),
                f"{FAILED}, step {mark.step:,}" if mark.kind == FAILED else "",
                mark.kind in TROUBLE,
            )
            for mark in shown[-_MARKS:]
        )


def _is_wide(lines: Sequence[Line]) -> bool:
    """Whether a logarithmic axis is needed, and possible."""
    known = [line.y[np.isfinite(line.y)] for line in lines]
    values = np.concatenate(known) if known else np.empty(0)
    return bool(values.size and values.min() > 0 and values.max() > _SPREAD * values.min())


def _common(group: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples `[n]` at which all were evaluated, and the accuracies `[runs, n]`."""
    found = []
    for run in group:
        samples, top1 = run.metrics.column("samples"), run.metrics.column("validation/top1")
        good = np.isfinite(samples) & np.isfinite(top1)
        found.append(dict(zip(samples[good].tolist(), top1[good].tolist(), strict=True)))
    at = sorted(set(found[0]).intersection(*found[1:]))
    return np.array(at, np.float64), np.array([[each[sample] for sample in at] for each in found])


def of_layers(run: Run) -> list[HeatMap]:
    """Return the maps of trust ratios, norms and drift for which the run has enough rows."""
    if len(run.layers) < LEAST_ROWS:
        return []
    found = []
    for quantity, title, caption in _NORMS:
        names, values = weights(run.layers, quantity)
        caption += " Weights only, without biases and BatchNorm's parameters."
        found.append(_heat_map(run, quantity, title, caption, names, values))
    names, *drifts = drift(run.layers)
    for (key, title, caption), values in zip(_DRIFT, drifts, strict=True):
        found.append(_heat_map(run, key, title, caption, names, values))
    return [each for each in found if each is not None]


def weights(rows: Sequence[Row], quantity: str) -> tuple[list[str], np.ndarray]:
    """Return a quantity of each weight: of every parameter named kernel, or of all if none is.

    Scales, shifts and biases are left out: most LARS flavours do not scale them.

    Args:
        rows: rows of `layers.jsonl`.
        quantity: such as `trust_ratio`.

    Returns:
        Paths from the input to the head, and `[paths, rows]` with NaN where unknown.
    """
    paths = _layer_paths(rows, quantity)
    chosen = [path for path in paths if path.endswith(_KERNEL)] or paths
    return chosen, _layer_table(rows, chosen, quantity)


def drift(rows: Sequence[Row]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the change of the moving statistics of each BatchNorm since the row before.

    For the mean m it is |m − m before| / √v, for the variance v it is |ln(v / v before)|. They
    begin with m = 0 and v = 1.

    Args:
        rows: rows of `layers.jsonl`.

    Returns:
        Paths from the input to the head, drift of the mean and of the variance, `[paths, rows]`.
    """
    paths = _layer_paths(rows, "running_variance")
    mean, variance = (
        _layer_table(rows, paths, name) for name in ("running_mean", "running_variance")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        of_mean = np.abs(np.diff(mean, prepend=0.0)) / np.sqrt(variance)
        of_variance = np.abs(np.diff(np.log(variance), prepend=0.0))
    return paths, of_mean, of_variance


def network_order(paths: Sequence[str]) -> list[str]:
    """Sort paths from the input to the output: the stem, numbered parts by number, the head."""

    def key(path: str) -> tuple:
        ends = 0 if path.startswith("stem") else 2 if path.startswith("head") else 1
        return ends, [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path)]

    return sorted(paths, key=key)


def _heat_map(
    run: Run, key: str, title: str, caption: str, names: Sequence[str], values: np.ndarray
) -> HeatMap | None:
    samples = run.layers.column("samples")
    good = np.flatnonzero(np.isfinite(samples))
    if not good.size or not np.isfinite(values).any():
        return None
    if len(good) > COLUMNS:
        caption += f" {COLUMNS} of {len(good)} rows are drawn."
        good = good[np.linspace(0, len(good) - 1, COLUMNS).round().astype(int)]
    epochs, label = place(run.metrics, samples[good])["epochs"], "epochs"
    if not np.isfinite(epochs).all():
        epochs, label = samples[good], "samples"
    short = tuple(name.removesuffix(_KERNEL) for name in names)
    return HeatMap(key, title, caption, short, epochs, label, values[:, good])


def _layer_paths(rows: Sequence[Row], quantity: str) -> list[str]:
    found = {path for row in rows for path, of in row["layers"].items() if quantity in of}
    return network_order(sorted(found))


def _layer_table(rows: Sequence[Row], paths: Sequence[str], quantity: str) -> np.ndarray:
    cells = [[row["layers"].get(path, {}).get(quantity) for row in rows] for path in paths]
    return np.array(cells, np.float64).reshape(len(paths), len(rows))
