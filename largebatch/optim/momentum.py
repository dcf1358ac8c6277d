"""What the rules share: masks, weight decay, momentum, a learning rate for each parameter.

Arithmetic is in at least float32; velocities and updates have the dtype of their parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from largebatch.optim.norms import at_least_float32
from largebatch.optim.rates import Rates

PyTree = Any
Mask = PyTree | Callable[[PyTree], PyTree] | None
"""Static bools in a tree like the parameters, or of one value for a whole subtree; or a function
of the parameters that returns one; None applies everywhere."""


# XLA's GPU compiler updates parameters of one shape in one kernel if they read different elements
# of one vector, which must have less than 1,024 bytes (ParameterSlicesAreNonOverlapping). Without
# that, ResNet-50 takes 161 kernels, most of them for a few hundred elements.
_SHARED = 250


def resolve_mask(mask: Mask, params: PyTree) -> PyTree:
    """A tree like `params` of bools."""
    if mask is None:
        mask = True
    return jax.tree.broadcast(mask(params) if callable(mask) else mask, params)


def zero_velocity(params: PyTree) -> PyTree:
    """Velocities, or other moments of gradients, before the first update."""
    return jax.tree.map(jnp.zeros_like, params)


def times(rate: Any, x: jax.Array) -> jax.Array:
    """`x` in at least float32, multiplied by a scalar that does not widen it."""
    x = at_least_float32(x)
    return jnp.asarray(rate, x.dtype) * x


def add_decay(grads: PyTree, params: PyTree, weight_decay: Any, applies: PyTree) -> PyTree:
    """The gradient g, plus wd·w where `applies`, in at least float32."""

    def direction(g: jax.Array, w: jax.Array, decayed: bool) -> jax.Array:
        g = at_least_float32(g)
        return g + times(weight_decay, w) if decayed else g

    return jax.tree.map(direction, grads, params, applies)


def accumulate(
    inputs: PyTree, velocity: PyTree, momentum: Any, *, nesterov: bool
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
    new = jax.tree.map(lambda x, v: times(momentum, v) + x, inputs, velocity)
    steps = jax.tree.map(lambda x, v: x + times(momentum, v), inputs, new) if nesterov else new
    return steps, kept(new, velocity)


def kept(new: PyTree, old: PyTree) -> PyTree:
    """`new` in the dtypes of `old`, in which it is held until the next update."""
    return jax.tree.map(lambda x, like: x.astype(like.dtype), new, old)


def advance(
    directions: PyTree,
    ratios: jax.Array | None,
    velocity: PyTree,
    rates: Rates,
    *,
    outside: bool,
    nesterov: bool,
    after: PyTree,
) -> tuple[PyTree, PyTree]:
    """One step of momentum with learning rates, n times a ratio for each parameter.

    Args:
        directions: u, in at least float32.
        ratios: (parameters,), or None for 1.
        velocity: v.
        rates: Of the step.
        outside: v accumulates ratio·u and the step is n·v; otherwise n·ratio·u, and v itself.
        nesterov: As of `accumulate`.
        after: A tree of what is computed first, see `spread`; its first leaf has the ratios' dtype.

    Returns:
        The step to subtract, and the velocity to keep.
    """
    like = jax.tree.leaves(after)[0]
    rate = jnp.full(like.shape, rates.learning_rate, like.dtype)
    inner = (ratios if outside else rate) if outside or ratios is None else rate * ratios
    if inner is not None:
        directions = _scaled(inner, directions, after)
    steps, velocity = accumulate(directions, velocity, rates.momentum, nesterov=nesterov)
    return _scaled(rate, steps, after) if outside else steps, velocity


def spread(rates: jax.Array, params: PyTree, after: PyTree) -> PyTree:
    """A tree like `params` of scalars, the elements of `rates` (parameters,).

    Args:
        rates: In the order of `jax.tree.leaves`.
        params: Whose structure to take.
        after: What is to be computed before anything that these scalars go into. Parameters are
            updated in place, so a norm of theirs that were still to come would need a copy.
    """
    pieces = [rates[start : start + _SHARED] for start in range(0, len(rates), _SHARED)]
    pieces, _ = jax.lax.optimization_barrier((pieces, after))
    return jax.tree.unflatten(jax.tree.structure(params), [x for piece in pieces for x in piece])


def _scaled(factors: jax.Array, tree: PyTree, after: PyTree) -> PyTree:
    return jax.tree.map(lambda factor, x: factor * x, spread(factors, tree, after), tree)


def descend(steps: PyTree, params: PyTree) -> PyTree:
    """The updates that `optax.apply_updates` adds: −step, in the dtype of the parameter."""
    return jax.tree.map(lambda step, w: (-step).astype(w.dtype), steps, params)
