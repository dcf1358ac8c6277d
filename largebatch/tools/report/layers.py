"""Quantities of each layer over time as matrices: trust ratios, norms, drift of the statistics."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from largebatch.tools.report.array_summaries import is_number
from largebatch.tools.report.runs import Row

COLUMNS = 300
"""Most moments that a map shows: more than it has pixels say nothing."""
_KERNEL = "/kernel"


class LayerMap(NamedTuple):
    """One quantity of all layers.

    Attributes:
        names: of the layers, from the input to the head.
        samples: moments, `[moments]`.
        values: `[layers, moments]`, NaN where unknown.
        moments: how many there were before they were thinned.
    """

    names: tuple[str, ...]
    samples: np.ndarray
    values: np.ndarray
    moments: int


def layer_map(rows: Sequence[Row], quantity: str) -> LayerMap | None:
    """A quantity of the weights: of every parameter named kernel, or of all where none is.

    Scales, shifts and biases are left out: LARS leaves them alone, so that their ratio is 1.

    Args:
        rows: of `layers.jsonl`.
        quantity: such as `trust_ratio`.

    Returns:
        None where no row has it.
    """
    paths = _paths(rows, quantity)
    kernels = [path for path in paths if path.endswith(_KERNEL)]
    chosen = kernels or paths
    return _made(rows, chosen, _table(rows, chosen, quantity))


def drift(rows: Sequence[Row]) -> tuple[LayerMap, LayerMap] | None:
    """How far the moving statistics of each BatchNorm went since the row before.

    Of the variance v, |ln(v / v before)|; of the mean m, |m − m before| / √v, in standard
    deviations. Before the first row they are what they begin with, v = 1 and m = 0.

    Args:
        rows: of `layers.jsonl`.

    Returns:
        Of the mean and of the variance; None where no row has statistics.
    """
    paths = _paths(rows, "running_variance")
    if not paths:
        return None
    mean, variance = (
        _table(rows, paths, name) for name in ("running_mean", "running_variance")
    )  # [layers, rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        of_mean = np.abs(np.diff(mean, prepend=0.0)) / np.sqrt(variance)
        of_variance = np.abs(np.diff(np.log(variance), prepend=0.0))
    return _made(rows, paths, of_mean), _made(rows, paths, of_variance)


def network_order(paths: Sequence[str]) -> list[str]:
    """From the input to the output: the stem, numbered parts by number, the head."""

    def key(path: str) -> tuple:
        ends = 0 if path.startswith("stem") else 2 if path.startswith("head") else 1
        return ends, [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path)]

    return sorted(paths, key=key)


def short(path: str) -> str:
    """A parameter's path as a label."""
    return path.removesuffix(_KERNEL)


def _paths(rows: Sequence[Row], quantity: str) -> list[str]:
    found = {path for row in rows for path, values in _layers(row).items() if quantity in values}
    return network_order(sorted(found))


def _layers(row: Row) -> Row:
    layers = row.get("layers") or {}
    return {path: values for path, values in layers.items() if isinstance(values, dict)}


def _table(rows: Sequence[Row], paths: Sequence[str], quantity: str) -> np.ndarray:
    """`[paths, rows]`."""
    found = np.full((len(paths), len(rows)), np.nan)
    for column, row in enumerate(rows):
        layers = _layers(row)
        for line, path in enumerate(paths):
            value = layers.get(path, {}).get(quantity)
            if is_number(value):
                found[line, column] = value
    return found


def _made(rows: Sequence[Row], paths: Sequence[str], values: np.ndarray) -> LayerMap | None:
    samples = np.array(
        [x if is_number(x := row.get("samples")) else np.nan for row in rows], np.float64
    )
    good = np.flatnonzero(np.isfinite(samples))
    if not paths or not len(good):
        return None
    if len(good) > COLUMNS:
        chosen = good[np.linspace(0, len(good) - 1, COLUMNS).round().astype(int)]
    else:
        chosen = good
    names = tuple(short(path) for path in paths)
    return LayerMap(names, samples[chosen], values[:, chosen], len(good))
