"""Arrays that a training step takes and returns."""

from typing import Any, NamedTuple

import jax

PyTree = Any


class TrainState(NamedTuple):
    """All that training changes on the devices; replicated, but for velocities in parts."""

    params: PyTree
    stats: PyTree
    optimizer: PyTree


class Carry(NamedTuple):
    """What each device has accumulated over the microbatches of a step; a row for each device."""

    gradients: tuple[jax.Array, ...]
    """For each bucket, (devices, elements)."""
    totals: jax.Array
    """Sums of batch statistics and metrics, (devices, elements)."""


class Metrics(NamedTuple):
    """Of a step's global batch; scalars."""

    loss: jax.Array
    top1: jax.Array
    top5: jax.Array
    gradient_norm: jax.Array
    stop: jax.Array | None = None
    """Devices whose process wants the run to stop; None where processes tell each other nothing."""
    left_out: jax.Array | None = None
    """Microbatches that devices have left out of this step; likewise."""


MEASURED = ("loss", "top1", "top5", "gradient_norm")
"""The metrics that every step has."""
