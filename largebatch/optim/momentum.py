"""What LARS and SGD share: masks, weight decay, momentum.

Arithmetic is in at least float32; velocities and updates have the dtype of their parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from largebatch.optim.report import at_least_float32

PyTree = Any
Mask = PyTree | Callable[[PyTree], PyTree] | None
"""Static bools in a tree like the parameters, or of one value for a whole subtree; or a function
of the parameters that returns one; None applies everywhere."""


def resolve_mask(mask: Mask, params: PyTree) -> PyTree:
    """A tree like `params` of bools."""
    if mask is None:
        mask = True
    return jax.tree.broadcast(mask(params) if callable(mask) else mask, params)


def zero_velocity(params: PyTree) -> PyTree:
    """Velocities before the first update."""
    return jax.tree.map(jnp.zeros_like, params)


def add_decay(grads: PyTree, params: PyTree, weight_decay: float, applies: PyTree) -> PyTree:
    """The gradient g, plus wd·w where `applies`."""

    def direction(g: jax.Array, w: jax.Array, decayed: bool) -> jax.Array:
        g = at_least_float32(g)
        return g + weight_decay * at_least_float32(w) if decayed else g

    return jax.tree.map(direction, grads, params, applies)


def accumulate(
    inputs: PyTree, velocity: PyTree, momentum: float, *, nesterov: bool
) -> tuple[PyTree, PyTree]:
    """One step of momentum: v ← m·v + x.

    Args:
        inputs: x, in at least float32.
        velocity: v.
        momentum: m.
        nesterov: Step by x + m·v instead of v (the new v in both).

    Returns:
        The step to subtract, and the velocity to keep in the dtype it came in.
    """
    new = jax.tree.map(lambda x, v: momentum * at_least_float32(v) + x, inputs, velocity)
    steps = jax.tree.map(lambda x, v: x + momentum * v, inputs, new) if nesterov else new
    return steps, jax.tree.map(lambda v, old: v.astype(old.dtype), new, velocity)


def descend(steps: PyTree, params: PyTree) -> PyTree:
    """The updates that `optax.apply_updates` adds: −step, in the dtype of the parameter."""
    return jax.tree.map(lambda step, w: (-step).astype(w.dtype), steps, params)
