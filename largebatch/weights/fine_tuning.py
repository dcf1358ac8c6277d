"""Replaces freshly initialized parameters by weights that were read."""

from collections.abc import Sequence

import numpy as np

from largebatch.data.sources import differing
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights.weights import PyTree, Weights, WeightsError

_HEAD = ("head/kernel", "head/bias")


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
    ours = theirs = weights.model.classes
    if weights.model.is_resnet:
        _check_same(weights, fresh[0] | fresh[1], given[0] | given[1])
        ours = fresh[0]["head/kernel"].shape[-1]
    else:
        _check_identical(weights, fresh[0] | fresh[1], given[0] | given[1])
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


def _check_identical(weights: Weights, fresh: dict, given: dict) -> None:
    """Raise a WeightsError unless all arrays of a user's module have the same names and shapes."""
    for path in sorted({*fresh, *given}):
        now, then = (tuple(each[path].shape) if path in each else None for each in (fresh, given))
        if now != then:
            raise WeightsError(
                f"{weights.origin}: {path}: expected shape {now}, got {then} in "
                f"model.name={weights.model.name}; use the same model.name and number of classes"
            )


def _check_same(weights: Weights, fresh: dict, given: dict) -> None:
    """Raise a WeightsError unless all arrays but the head have the same names and shapes."""
    model = weights.model
    for path in ["stem/conv/kernel", *fresh, *given]:  # the stem first: its message is the clearest
        if path not in given or path not in fresh:
            side = "the run's network" if path in fresh else "the file"
            raise WeightsError(
                f"{weights.origin}: the weights are of {model.name}, the run's network differs "
                f"(only {side} has {path}); use model.name={model.name}"
            )
        now, then = tuple(fresh[path].shape), tuple(given[path].shape)
        compared = slice(None)
        if path in _HEAD:  # all but the classes
            compared = slice(None, -1)
        if now[compared] != then[compared]:
            raise WeightsError(
                f"{weights.origin}: {path} has shape {then}, the run's has {now}; use "
                f"{_remedy(path, now, then, weights)}"
            )


def _remedy(path: str, now: tuple[int, ...], then: tuple[int, ...], weights: Weights) -> str:
    if path == "stem/conv/kernel":
        if now[:2] != then[:2]:
            return f"model.stem={weights.model.stem}"
        if now[2] != then[2]:
            return f"data of {then[2]} channel(s)"
    return f"model.name={weights.model.name} and model.width={weights.model.width}"
