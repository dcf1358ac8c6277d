"""Arrays that a training step takes and returns."""

from typing import Any, NamedTuple

import jax

PyTree = Any


class Averages(NamedTuple):
    """Exponential moving averages of a training's parameters and BatchNorm statistics."""

    params: PyTree
    stats: PyTree


class TrainState(NamedTuple):
    """The arrays that training changes; replicated, except for velocities in parts."""

    params: PyTree
    stats: PyTree
    optimizer: PyTree
    ema: Averages | None = None
    """None without ``schedule.ema``."""


class Carry(NamedTuple):
    """Sums of each device over the microbatches of a step; a row for each device."""

    gradients: tuple[jax.Array, ...]
    """One array (devices, elements) for each bucket."""
    totals: jax.Array
    """Sums of batch statistics and metrics, (devices, elements)."""


class Metrics(NamedTuple):
    """Metrics over the global batch of a step; scalars."""

    loss: jax.Array
    top1: jax.Array
    top5: jax.Array
    gradient_norm: jax.Array
    stop: jax.Array | None = None
    """Number of devices whose process has a request to stop; None without control flags."""
    left_out: jax.Array | None = None
    """Number of microbatches that devices have left out of this step; None without flags."""


MEASURED = ("loss", "top1", "top5", "gradient_norm")
"""The metrics that every step has."""
