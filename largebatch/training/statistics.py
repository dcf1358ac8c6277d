"""Running statistics of BatchNorm, from the batch statistics of all workers.

The statistics of a step are the plain average of the mean and variance of all spans of the global
batch. A moving average takes them in. Its memory grows with the number of steps until it is that of
``norm.momentum``, so that early evaluations are right too. *Precise* statistics replace it by those
of the pooled activations of N batches, E[μ² + σ²] − E[μ]² (Wu & Johnson 2021, arXiv 2105.07576,
section 3).

`share_kept` and `moving_average` also average the weights (``schedule.ema``). Their average
includes the running statistics, as in torchvision and timm, which average all buffers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
_AVERAGING = 40
"""η in `share_kept`: the memory of the average is 1 / (η + 1) of the steps done."""


def sum_over_spans(batch: PyTree) -> PyTree:
    """Sum the statistics {…: (spans, features)} of a device's microbatch over its spans."""
    return jax.tree.map(lambda x: x.sum(axis=0), batch)


def share_kept(step: Any, momentum: float) -> Any:
    """Return the share of the running statistics that update number ``step`` keeps.

    min(momentum, (t − 1) / (t + 40)) at step t, counted from 1: polynomial-decay averaging (Shamir
    & Zhang 2013, arXiv 1212.1824, section 4, η = 40) until it reaches the momentum. The first step
    replaces the initial mean 0 and variance 1, of which a plain moving average keeps
    momentum ** t. The memory is then 1/41 of the steps done, so the average follows weights that
    change fast. From step (1 + 40 · momentum) / (1 − momentum) on (370 for 0.9) it is the plain
    moving average.

    Args:
      step: a scalar, from 1, traced or not.
      momentum: the share kept in the long run, below 1.
    """
    return jnp.minimum(momentum, (step - 1) / (step + _AVERAGING))


def moving_average(running: PyTree, mean: PyTree, kept: Any) -> PyTree:
    """Return ``kept`` of the running statistics, or of an average, plus the rest of the step's."""
    return jax.tree.map(lambda old, new: kept * old + (1 - kept) * new, running, mean)


def with_squared_means(batch: PyTree) -> PyTree:
    """Add the squared means, which pooling needs, to batch statistics {…: {mean, var}}."""
    return _at_layers(batch, lambda layer: layer | {"mean_squared": jnp.square(layer["mean"])})


def pooled(average: PyTree) -> PyTree:
    """Return mean and biased variance of pooled activations, from averages over spans."""
    return _at_layers(
        average,
        lambda layer: {
            "mean": layer["mean"],
            "var": np.maximum(layer["var"] + layer["mean_squared"] - layer["mean"] ** 2, 0),
        },
    )


def _at_layers(tree: PyTree, change: Any) -> PyTree:
    if "mean" in tree:
        return change(tree)
    return {name: _at_layers(child, change) for name, child in tree.items()}
