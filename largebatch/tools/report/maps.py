"""Heat maps of layers over time: trust ratios, norms, and drift of the BatchNorm statistics."""

import re
from collections.abc import Sequence

import numpy as np

from largebatch.tools.report.figures import HeatMap
from largebatch.tools.report.runs import Run
from largebatch.tools.report.series import Row, place

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


def of_layers(run: Run) -> list[HeatMap]:
    """Return the maps of trust ratios, norms and drift for which the run has enough rows."""
    if len(run.layers) < LEAST_ROWS:
        return []
    found = []
    for quantity, title, caption in _NORMS:
        names, values = weights(run.layers, quantity)
        caption += " Weights only, without biases and BatchNorm's parameters."
        found.append(_map(run, quantity, title, caption, names, values))
    names, *drifts = drift(run.layers)
    for (key, title, caption), values in zip(_DRIFT, drifts, strict=True):
        found.append(_map(run, key, title, caption, names, values))
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
    paths = _paths(rows, quantity)
    chosen = [path for path in paths if path.endswith(_KERNEL)] or paths
    return chosen, _table(rows, chosen, quantity)


def drift(rows: Sequence[Row]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the change of the moving statistics of each BatchNorm since the row before.

    For the mean m it is |m − m before| / √v, for the variance v it is |ln(v / v before)|. They
    begin with m = 0 and v = 1.

    Args:
        rows: rows of `layers.jsonl`.

    Returns:
        Paths from the input to the head, drift of the mean and of the variance, `[paths, rows]`.
    """
    paths = _paths(rows, "running_variance")
    mean, variance = (_table(rows, paths, name) for name in ("running_mean", "running_variance"))
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


def _map(
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


def _paths(rows: Sequence[Row], quantity: str) -> list[str]:
    found = {path for row in rows for path, of in row["layers"].items() if quantity in of}
    return network_order(sorted(found))


def _table(rows: Sequence[Row], paths: Sequence[str], quantity: str) -> np.ndarray:
    cells = [[row["layers"].get(path, {}).get(quantity) for row in rows] for path in paths]
    return np.array(cells, np.float64).reshape(len(paths), len(rows))
