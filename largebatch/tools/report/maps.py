"""Heat maps of layers over time, and bars of where time went."""

from collections.abc import Mapping

import numpy as np

from largebatch.tools.report.charts import Bars, HeatMap
from largebatch.tools.report.layers import LayerMap, drift, layer_map
from largebatch.tools.report.runs import Run
from largebatch.tools.report.series import place
from largebatch.tools.report.turns import PARTS, splits

LEAST_ROWS = 8
"""A map of fewer rows of `layers.jsonl` shows nothing that could be read from it."""
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


def of_layers(run: Run) -> list[HeatMap]:
    """Return trust ratios, norms and drift of the statistics, as far as the run logged them."""
    if len(run.layers) < LEAST_ROWS:
        return []
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


def _map(run: Run, key: str, title: str, caption: str, made: LayerMap) -> HeatMap:
    if made.moments > len(made.samples):
        caption += f" {len(made.samples)} of {made.moments} rows are drawn."
    epochs = place(run.metrics, made.samples, "epochs")
    x, label = (epochs, "epochs") if np.isfinite(epochs).all() else (made.samples, "samples")
    return HeatMap(key, title, caption, made.names, x, label, made.values)


def of_time(run: Run) -> Bars | None:
    """Return what each run attempt spent its time on."""
    found = splits(run)
    longest = max((sum(parts.values()) for _, parts in found), default=0.0)
    if not longest:
        return None
    unit, name = (60.0, "minutes") if longest >= 300 else (1.0, "seconds")
    rows = tuple((title, {part: s / unit for part, s in parts.items()}) for title, parts in found)
    caption = (
        "Wall time of each run attempt. Step: training without its waits for data; checkpoint: "
        "time that training waited for checkpoints; other: start-up, restoring and the like."
    )
    return Bars("time", "Where the time went", caption, rows, _SPENT, name)


def of_trace(split: Mapping[str, float]) -> Bars:
    """Return what the device's time of a profile went into."""
    caption = (
        "Shares of the profiled time. Collectives count where nothing else ran beside them; idle "
        "is when nothing ran: dispatch, waits for data or for other processes."
    )
    rows = tuple((name, {"": 100 * share}) for name, share in split.items() if share >= 0.0005)
    return Bars("trace", "Where a step's time goes", caption, rows, {"": 0}, "% of the time")
