"""Masks, decay, L2 term, moments and learning rates per parameter, which all optimizers share.

Arithmetic is in at least float32. Velocities and updates have the dtype of their parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from largebatch.optim.norms import at_least_float32
from largebatch.optim.rates import Rates

PyTree = Any
Mask = PyTree | Callable[[PyTree], PyTree] | None
"""Static bools in a tree like the parameters or a prefix of it, or a function that maps the
parameters to such a tree; None: True for all parameters."""


# XLA's GPU compiler updates parameters of equal shape in one kernel if they read different elements
# of one vector of less than 1,024 bytes (ParameterSlicesAreNonOverlapping). Otherwise ResNet-50
# takes 161 kernels, most of them for a few hundred elements.
_SHARED = 250


def resolve_mask(mask: Mask, params: PyTree) -> PyTree:
    """Return a mask as a tree of bools like `params`."""
    if mask is None:
        mask = True
    return jax.tree.broadcast(mask(params) if callable(mask) else mask, params)


def zero_velocity(params: PyTree) -> PyTree:
    """Return initial velocities, or other moments of gradients."""
    return jax.tree.map(jnp.zeros_like, params)


def times(rate: Any, x: jax.Array) -> jax.Array:
    """Return rate·x in at least float32; the dtype of `rate` does not widen the result."""
    x = at_least_float32(x)
    return jnp.asarray(rate, x.dtype) * x


def add_decay(grads: PyTree, params: PyTree, weight_decay: Any, applies: PyTree) -> PyTree:
    """Return g + wd·w, or g where `applies` is False, in at least float32."""

    def direction(g: jax.Array, w: jax.Array, decayed: bool) -> jax.Array:
        g = at_least_float32(g)
        return g + times(weight_decay, w) if decayed else g

    return jax.tree.map(direction, grads, params, applies)


def accumulate(
    inputs: PyTree, velocity: PyTree, momentum: Any, *, nesterov: bool
) -> tuple[PyTree, PyTree]:
    """Compute one step of momentum: v ← m·v + x.

    Args:
        inputs: x, in at least float32.
        velocity: v.
        momentum: m.
        nesterov: Use x + m·v instead of v as the step, with the new v in both cases.

    Returns:
        The step to subtract, and the new velocity in the dtype of the old one.
    """
    new = jax.tree.map(lambda x, v: times(momentum, v) + x, inputs, velocity)
    steps = jax.tree.map(lambda x, v: x + times(momentum, v), inputs, new) if nesterov else new
    return steps, cast_like(new, velocity)


def cast_like(new: PyTree, old: PyTree) -> PyTree:
    """Cast the leaves of `new` to the dtypes of `old`."""
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
    """Compute one step of momentum with learning rate n times a ratio for each parameter.

    Args:
        directions: u, in at least float32.
        ratios: Ratios of shape (parameters,), or None for 1.
        velocity: v.
        rates: Hyperparameters of the step.
        outside: True: v accumulates ratio·u and the step is n·v. False: v accumulates n·ratio·u
            and the step is v.
        nesterov: See `accumulate`.
        after: A tree of values to compute first, see `spread`. Its first leaf has the dtype and
            shape of the ratios.

    Returns:
        The step to subtract, and the new velocity.
    """
    like = jax.tree.leaves(after)[0]
    rate = jnp.full(like.shape, rates.learning_rate, like.dtype)
    inner = (ratios if outside else rate) if outside or ratios is None else rate * ratios
    if inner is not None:
        directions = _scaled(inner, directions, after)
    steps, velocity = accumulate(directions, velocity, rates.momentum, nesterov=nesterov)
    return _scaled(rate, steps, after) if outside else steps, velocity


def spread(rates: jax.Array, params: PyTree, after: PyTree) -> PyTree:
    """Return the elements of `rates` as a tree of scalars like `params`.

    Args:
        rates: Vector of shape (parameters,), in the order of `jax.tree.leaves`.
        params: A tree with the structure of the result.
        after: Values that must be computed before any use of the scalars. Parameters are updated in
            place, so that a norm computed later would need a copy of them.
    """
    pieces = [rates[start : start + _SHARED] for start in range(0, len(rates), _SHARED)]
    pieces, _ = jax.lax.optimization_barrier((pieces, after))
    return jax.tree.unflatten(jax.tree.structure(params), [x for piece in pieces for x in piece])


def _scaled(factors: jax.Array, tree: PyTree, after: PyTree) -> PyTree:
    return jax.tree.map(lambda factor, x: factor * x, spread(factors, tree, after), tree)


def descend(steps: PyTree, params: PyTree) -> PyTree:
    """Return updates for `optax.apply_updates`: −step, in the dtype of the parameter."""
    return jax.tree.map(lambda step, w: (-step).astype(w.dtype), steps, params)


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


PyTree = Any


def with_l2(
    rule: optax.GradientTransformationExtraArgs, coefficient: float, mask: Mask = None
) -> optax.GradientTransformationExtraArgs:
    """Return `rule` with λ·w added to its gradients.

    Unlike weight decay, the term is part of the gradient norms in LARS and in the report.

    Args:
        rule: An optimizer.
        coefficient: λ.
        mask: Parameters with the L2 term.
    """

    def update(grads: PyTree, state: PyTree, params: PyTree, **more: Any) -> tuple[PyTree, PyTree]:
        grads = add_decay(grads, params, coefficient, resolve_mask(mask, params))
        return rule.update(grads, state, params, **more)

    return optax.GradientTransformationExtraArgs(rule.init, update)
