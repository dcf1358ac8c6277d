"""Replaces freshly initialized parameters by weights that were read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from largebatch.data.source import differing
from largebatch.registry import is_reference
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights.reading import read
from largebatch.weights.weights import PyTree, Weights, WeightsError

_HEAD = ("head/kernel", "head/bias")
_ABSENT = ("absent",)  # in place of a shape


def beginning(options: Any) -> Weights:
    """Read the weights of ``model.init_from``.

    They may be of the user's own module only if the user has named it, as ``model.name``.

    Args:
      options: section ``model`` of the configuration.

    Raises:
      UserError: they cannot be read.
    """
    trust = (options.name,) if is_reference(options.name) else ()
    return read(options.init_from, trust=trust)


def initial(
    weights: Weights, params: PyTree, stats: PyTree, classes: Sequence[str] = ()
) -> tuple[PyTree, PyTree, str]:
    """Replace fresh parameters and statistics by weights.

    The head stays fresh if the number of classes differs.

    Args:
      weights: from `read`.
      params: fresh ones, arrays or their shapes and types.
      stats: fresh ones.
      classes: names of the run's classes, compared with those of the weights; () if unknown.

    Returns:
      Trees like ``params`` and ``stats``, NumPy arrays of the same types (fresh leaves are the
      very ones given), and a text for the user.

    Raises:
      WeightsError: the networks differ in more than the head.
    """
    fresh = flatten_paths(params), flatten_paths(stats)
    given = flatten_paths(weights.params), flatten_paths(weights.stats)
    _check_same(weights, fresh[0] | fresh[1], given[0] | given[1])
    ours = theirs = weights.model.classes
    if weights.model.is_resnet:
        ours = fresh[0]["head/kernel"].shape[-1]
    kept = () if ours == theirs else _HEAD
    taken = [
        {
            path: array if path in kept else np.asarray(then[path], array.dtype)
            for path, array in now.items()
        }
        for now, then in zip(fresh, given, strict=True)
    ]
    text = f"{weights.model.name} of {weights.origin}"
    if kept:
        text += f", with a fresh head: {ours:,} classes, the weights have {theirs:,}"
    elif classes and weights.classes and tuple(classes) != weights.classes:
        difference = differing(weights.classes, classes)
        text += f", with its head, although the weights' classes have other names: {difference}"
    return *(unflatten_paths(flat) for flat in taken), text


def _check_same(weights: Weights, fresh: dict, given: dict) -> None:
    """Raise a WeightsError unless all arrays have the same names and shapes.

    The number of classes of a ResNet may differ.
    """
    model = weights.model
    use = f"model.name={model.name} and the same number of classes"
    first = []
    if model.is_resnet:
        first = ["stem/conv/kernel"]  # its message is the clearest
        use = f"model.name={model.name}, model.width={model.width}, model.stem={model.stem} and "
        use += f"images of {model.channels} channel(s)"
    for path in [*first, *fresh, *given]:
        now, then = (each[path].shape if path in each else _ABSENT for each in (fresh, given))
        compared = slice(-1) if model.is_resnet and path in _HEAD else slice(None)
        if now[compared] != then[compared]:
            raise WeightsError(
                f"{weights.origin}: {path}: expected shape {now}, got {then}; use {use}"
            )
