"""The rows of ``layers.jsonl``: norms of each parameter, running statistics of each BatchNorm.

The device joins their numbers in one array (`Steps.layer_report`), since the host spends its time
on the number of arrays that it copies. The host computes with the whole array where it can, for the
same reason.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from largebatch.optim import LayerReport, by_path, path_names
from largebatch.trees import flatten_paths

PyTree = Any
Rows = dict[str, dict[str, float]]


def layer_reader(
    report: LayerReport, params: PyTree, stats: PyTree
) -> Callable[[np.ndarray], Rows]:
    """Return a function from the numbers of `Steps.layer_report`, on the host, to rows.

    The rows are {path of a parameter or of a BatchNorm layer: {name: value}}. ``running_mean`` is
    the root mean square of a layer's means, ``running_variance`` the geometric mean of its
    variances. Both follow from the statistics alone, so a resumed run logs what an uninterrupted
    one does.

    Args:
      report: of the optimizer; only shapes are used, as of all arguments.
      params: the parameters that it reports on.
      stats: the running statistics {…: {mean, var}}.
    """
    paths = jax.tree.leaves(path_names(params))
    reported = sum(column.size for column in report)
    leaves, structure = jax.tree.flatten(stats)
    ends = itertools.accumulate(x.size for x in leaves)
    slices = [slice(end - x.size, end) for x, end in zip(leaves, ends, strict=True)]
    places = flatten_paths(jax.tree.unflatten(structure, slices))
    layers = [path.removesuffix("/mean") for path in places if path.endswith("/mean")]

    def read(numbers: np.ndarray) -> Rows:
        columns = numbers[:reported].reshape(len(LayerReport._fields), -1)
        rows = by_path(LayerReport(*columns), paths)
        found = numbers[reported:]
        squares = np.square(found, dtype=np.float64)
        logarithms = np.log(np.maximum(found, np.finfo(np.float32).tiny))  # a variance may be 0
        for layer in layers:
            rows[layer] = {
                "running_mean": float(np.sqrt(squares[places[f"{layer}/mean"]].mean())),
                "running_variance": float(np.exp(logarithms[places[f"{layer}/var"]].mean())),
            }
        return rows

    return read
