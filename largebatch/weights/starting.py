"""Weights in the place of freshly initialised ones: fine-tuning."""

from collections.abc import Sequence

import numpy as np

from largebatch.data.sources import differing
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights.weights import PyTree, Weights, WeightsError

_HEAD = ("head/kernel", "head/bias")


def initial(
    weights: Weights, params: PyTree, stats: PyTree, classes: Sequence[str] = ()
) -> tuple[PyTree, PyTree, str]:
    """Put weights in the place of fresh parameters and statistics.

    The head stays fresh where it has another number of classes.

    Args:
      weights: from `read`.
      params: fresh ones, arrays or their shapes and types.
      stats: likewise.
      classes: names of the run's classes, to be compared with the weights'; () where unknown.

    Returns:
      Trees like ``params`` and ``stats``, NumPy arrays of the same types (fresh leaves are the
      very ones given), and what was done, for people.

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
    told = f"{weights.model.name} of {weights.origin}"
    if kept:
        told += f", with a fresh head: {ours:,} classes where the weights have {theirs:,}"
    elif classes and weights.classes and tuple(classes) != weights.classes:
        said = differing(weights.classes, classes)
        told += f", the head too, though the weights' classes are named otherwise: {said}"
    return *(unflatten_paths(flat) for flat in taken), told


def _check_identical(weights: Weights, fresh: dict, given: dict) -> None:
    """Raises a WeightsError unless all arrays have the same names and shapes: a user's module."""
    for path in sorted({*fresh, *given}):
        now, then = (tuple(each[path].shape) if path in each else None for each in (fresh, given))
        if now != then:
            raise WeightsError(
                f"{weights.origin}: {path} has shape {then} in model.name={weights.model.name}, "
                f"{now} in the run's network; set the same model.name and data of as many classes"
            )


def _check_same(weights: Weights, fresh: dict, given: dict) -> None:
    """Raises a WeightsError unless all arrays but the head have the same names and shapes."""
    where, model = weights.origin, weights.model
    # The stem first: it tells most.
    for path in ["stem/conv/kernel", *fresh, *given]:
        if path not in given or path not in fresh:
            side, verb = ("the run's network", "has") if path in fresh else ("they", "have")
            raise WeightsError(
                f"{where}: the weights are of {model.name}, the run's network is another (only "
                f"{side} {verb} {path}); set model.name={model.name}"
            )
        now, then = tuple(fresh[path].shape), tuple(given[path].shape)
        if now != then and path not in _HEAD:
            raise WeightsError(
                f"{where}: {path} has shape {then}, the run's has {now}; "
                f"{_remedy(path, now, then, weights)}"
            )
    now, then = fresh["head/kernel"].shape[0], given["head/kernel"].shape[0]
    if now != then:
        raise WeightsError(
            f"{where}: head/kernel has {then} features, the run's has {now}; set "
            f"model.width={model.width}"
        )


def _remedy(path: str, now: tuple[int, ...], then: tuple[int, ...], weights: Weights) -> str:
    if path == "stem/conv/kernel":
        if now[:2] != then[:2]:
            return f"set model.stem={weights.model.stem}"
        if now[2] != then[2]:
            return f"use data of {then[2]} channel(s)"
    return f"set model.name={weights.model.name} and model.width={weights.model.width}"
