"""Figures of layers over time, of where time went, and of what happened when."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.report import palette
from largebatch.report.axes import finish, plain_log, unit_of
from largebatch.report.canvas import Drawing, panels
from largebatch.report.layers import LayerMap, drift, layer_map
from largebatch.report.runs import Run
from largebatch.report.series import AXES, place
from largebatch.report.turns import PARTS, marks, splits

_NORMS = (
    (
        "trust_ratio",
        "Trust ratios",
        "By how much LARS scales the learning rate of each layer's weights. A ratio that falls "
        "says that the gradient grows against the weights, or these shrink; a layer much darker "
        "than its neighbours hardly learns.",
    ),
    (
        "weight_norm",
        "Weight norms",
        "Of each layer's weights. With weight decay they grow early and settle; one that keeps "
        "growing lowers the layer's effective rate.",
    ),
    (
        "gradient_norm",
        "Gradient norms",
        "Of each layer's gradient at the step that was logged. A bright column is one bad step, a "
        "bright row one bad layer.",
    ),
)
_DRIFT = (
    (
        "bn_mean",
        "BatchNorm means: drift",
        "Change of the moving mean since the row before, in standard deviations: |m − m before| / "
        "√v, where m is the root mean square over features; the first against 0.",
    ),
    (
        "bn_variance",
        "BatchNorm variances: drift",
        "Relative change of the moving variance since the row before: |ln(v / v before)|, where v "
        "is the geometric mean over features; the first against 1. Dark towards the end says that "
        "what evaluation uses has settled.",
    ),
)
_SPENT = dict(zip(PARTS, (4, 1, 0, 2, 3, 7), strict=True))
"""Colour of each part, among the series."""
_KINDS = (
    ("turn", palette.MUTED, "|"),
    ("evaluation", palette.SERIES[1], "o"),
    ("checkpoint", palette.SERIES[2], "o"),
    ("preempted", palette.WAIT, "s"),
    ("slow host", palette.WAIT, "D"),
    ("skipped", palette.BAD, "x"),
    ("rollback", palette.BAD, "<"),
    ("replay", palette.SERIES[5], "o"),
    ("unhealthy", palette.BAD, "X"),
)


def of_layers(run: Run) -> list[Drawing]:
    """Trust ratios, norms and drift of the statistics, as far as the run logged them."""
    found = []
    for quantity, title, caption in _NORMS:
        made = layer_map(run.layers, quantity)
        if made is not None and np.isfinite(made.values).any():
            caption += " Weights only: biases and BatchNorm's own parameters are left out."
            found.append(_map(run, quantity, title, caption, made))
    drifts = drift(run.layers)
    for (key, title, caption), made in zip(_DRIFT, drifts or (), strict=False):
        found.append(_map(run, key, title, caption, made))
    return found


def _map(run: Run, key: str, title: str, caption: str, made: LayerMap) -> Drawing:
    if made.moments > len(made.samples):
        caption += f" {len(made.samples)} of {made.moments} rows are drawn."
    return Drawing(key, title, caption, lambda _: _draw_map(run, made))


def _draw_map(run: Run, found: LayerMap) -> Any:
    from matplotlib.colors import LogNorm

    count = len(found.names)
    made, (ax,) = panels(1, 0.75 + max(0.9, 0.135 * count))
    positive = found.values[np.isfinite(found.values) & (found.values > 0)]
    low, high = (
        np.quantile(positive, (0.005, 0.995)) if positive.size else (1.0, 1.0)
    )  # a single outlier would leave the rest in one colour
    if high <= low:
        low, high = 0.5 * low, 2.0 * high
    epochs = place(run.metrics, found.samples, "epochs")
    x, label = (epochs, "epochs") if np.isfinite(epochs).all() else (found.samples, "samples")
    shown = np.where(found.values > 0, found.values, np.where(found.values == 0, low, np.nan))
    image = ax.pcolormesh(
        _edges(x),
        np.arange(count + 1) - 0.5,
        shown,
        norm=LogNorm(low, high, clip=True),
        cmap=palette.HEAT,
        rasterized=True,
    )
    ax.set(ylim=(count - 0.5, -0.5), xlabel=label)
    ax.set_yticks(range(count), found.names, fontsize=6.3 if count > 24 else 6.8)
    ax.grid(visible=False)
    bar = made.colorbar(image, cax=ax.inset_axes((1.02, 0, 0.025, 1)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", length=0)
    plain_log(bar.ax.yaxis)
    return made


def _edges(ends: np.ndarray) -> np.ndarray:
    """Borders, `[n + 1]`, of cells that each reach from the row before, or 0, to their own."""
    first = min(0.0, ends[0] - 1e-9)
    return np.concatenate([[first], ends])


def of_time(run: Run) -> Drawing | None:
    """What each turn spent its time on."""
    found = splits(run)
    if not any(sum(parts.values()) for _, parts in found):
        return None
    caption = (
        "Wall time of each turn at the run. Step: training without its waits for data; checkpoint: "
        "what training waited for checkpoints; other: starting, restoring and the like."
    )
    return Drawing("time", "Where the time went", caption, lambda _: _draw_time(found))


def _draw_time(found: Sequence[tuple[str, Mapping[str, float]]]) -> Any:
    titles = [title for title, _ in found]
    made, (ax,) = panels(1, 1.15 + 0.3 * len(found))
    left = np.zeros(len(found))
    longest = max(sum(parts.values()) for _, parts in found)
    unit, name = (60.0, "minutes") if longest >= 300 else (1.0, "seconds")
    for part in PARTS:
        width = np.array([parts[part] for _, parts in found]) / unit
        if width.sum() > 0:
            colour = palette.series(_SPENT[part])
            share = width.sum() * unit / sum(sum(parts.values()) for _, parts in found)
            label = f"{part} {100 * share:.0f} %" if share >= 0.005 else f"{part} < 1 %"
            ax.barh(titles, width, left=left, height=0.62, color=colour, label=label)
            left += width
    ax.set(xlabel=name, ylim=(len(found) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2)
    return made


def of_events(run: Run) -> Drawing | None:
    """What happened when."""
    happened = [mark for mark in marks(run.events) if mark.kind != "hosts"]
    if not happened:
        return None
    caption = (
        "A mark for each event; times are those of the run, pauses between its turns left out. "
        "The list below has all of them."
    )
    return Drawing("events", "Events", caption, lambda axis: _draw_events(run, axis), AXES)


def _draw_events(run: Run, axis: str) -> Any:
    happened = marks(run.events)
    kinds = [kind for kind in _KINDS if any(mark.kind == kind[0] for mark in happened)]
    made, (ax,) = panels(1, 0.6 + 0.24 * len(kinds))
    unit = unit_of(axis, [run])
    for line, (kind, colour, marker) in enumerate(kinds):
        samples = [mark.samples for mark in happened if mark.kind == kind]
        x = place(run.metrics, samples, axis) / unit[0]
        x = np.unique(x[np.isfinite(x)])
        ax.plot(
            x,
            np.full(len(x), line),
            marker,
            color=colour.light,
            markersize=9 if marker == "|" else 4,
        )
    ax.set_yticks(range(len(kinds)), [kind for kind, _, _ in kinds])
    ax.set_ylim(len(kinds) - 0.5, -0.5)
    finish([ax], axis, unit)
    return made


def of_trace(split: Mapping[str, float]) -> Drawing:
    """What the device's time of a profile went into."""
    caption = (
        "Shares of the profiled time. Collectives count where nothing else ran beside them; idle "
        "is when nothing ran: dispatch, waits for data or for other processes."
    )
    return Drawing("trace", "Where a step's time goes", caption, lambda _: _draw_trace(split))


def _draw_trace(split: Mapping[str, float]) -> Any:
    names = [name for name in split if split[name] >= 0.0005]
    made, (ax,) = panels(1, 0.55 + 0.24 * len(names))
    values = [100 * split[name] for name in names]
    bars = ax.barh(names, values, height=0.66, color=palette.series(0))
    ax.bar_label(bars, [f"{value:.1f} %" for value in values], padding=3, fontsize=8)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.12 * max(values)), xlabel="% of the time")
    ax.grid(axis="y", visible=False)
    return made
