"""The rows of ``layers.jsonl``: norms of each parameter, running statistics of each BatchNorm.

The device joins their numbers in one array (`Steps.layer_report`), since the host spends its time
on the number of arrays that it copies. The host computes with the whole array where it can, for the
same reason.
"""

import itertools
from typing import Any

import jax
import numpy as np

from largebatch.optim.parameters import path_names
from largebatch.optim.report import LayerReport, by_path
from largebatch.trees import flatten_paths

PyTree = Any


class LayerRows:
    """Reads the arrays of one network."""

    def __init__(self, report: LayerReport, params: PyTree, stats: PyTree) -> None:
        """Remember where each number is.

        Args:
          report: of the optimizer; only shapes are used, as of all arguments.
          params: the parameters that it reports on.
          stats: the running statistics {…: {mean, var}}.
        """
        self._paths = jax.tree.leaves(path_names(params))
        self._reported = sum(column.size for column in report)
        ends = itertools.accumulate(x.size for x in jax.tree.leaves(stats))
        places = jax.tree.unflatten(
            jax.tree.structure(stats),
            [slice(end - x.size, end) for x, end in zip(jax.tree.leaves(stats), ends, strict=True)],
        )
        flat = flatten_paths(places)
        self._layers = [
            (path.removesuffix("/mean"), place, flat[f"{path.removesuffix('mean')}var"])
            for path, place in flat.items()
            if path.endswith("/mean")
        ]

    def read(self, numbers: np.ndarray) -> dict[str, dict[str, float]]:
        """Return {path of a parameter or of a BatchNorm layer: {name: value}}.

        ``running_mean`` is the root mean square of a layer's means, ``running_variance`` the
        geometric mean of its variances. Both follow from the statistics alone, so a resumed run
        logs what an uninterrupted one does.

        Args:
          numbers: result of `Steps.layer_report`, on the host.
        """
        columns = numbers[: self._reported].reshape(len(LayerReport._fields), -1)
        rows = by_path(LayerReport(*columns), self._paths)
        stats = numbers[self._reported :]
        squares = np.square(stats, dtype=np.float64)
        logarithms = np.log(np.maximum(stats, np.finfo(np.float32).tiny))  # a variance may be 0
        means = np.sqrt([_mean(squares[mean]) for _, mean, _ in self._layers])
        variances = np.exp([_mean(logarithms[variance]) for *_, variance in self._layers])
        for (path, *_), mean, variance in zip(
            self._layers, means.tolist(), variances.tolist(), strict=True
        ):
            rows[path] = {"running_mean": mean, "running_variance": variance}
        return rows


def _mean(values: np.ndarray) -> Any:
    """Return what `np.mean` returns for a vector, in a third of its time."""
    return np.add.reduce(values) / values.dtype.type(values.size)
