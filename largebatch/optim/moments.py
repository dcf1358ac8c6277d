"""Running means of squared gradients for LAMB and RMSprop."""

from typing import Any

import jax
import jax.numpy as jnp

from largebatch.optim.momentum import times
from largebatch.optim.norms import at_least_float32

PyTree = Any


def mean_squares(grads: PyTree, held: PyTree, share: float) -> PyTree:
    """Return share·s + (1 − share)·g², in at least float32.

    Args:
        grads: g.
        held: s, the mean before the update.
        share: Weight of s.
    """
    return jax.tree.map(
        lambda g, s: times(share, s) + times(1 - share, jnp.square(at_least_float32(g))),
        grads,
        held,
    )
