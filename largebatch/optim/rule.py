"""What all update rules share: masks, weight decay, moments, learning rates per parameter.

`momentum_rule` is the shape of SGD, LARS and RMSprop. Arithmetic is in at least float32; moments
and updates have the dtype of their parameter.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.optim.norms import (
    LayerReport,
    Norms,
    at_least_float32,
    empty_report,
    global_norm,
    measure,
)
from largebatch.optim.schedules import Rates

PyTree = Any
Mask = PyTree | Callable[[PyTree], PyTree] | None
"""Static bools in a tree like the parameters or a prefix of it, or a function that maps the
parameters to such a tree; None: True for all parameters."""
Placement = Literal["inside", "outside", "inside_corrected"]
"""Whether velocities contain the learning rate; `inside_corrected`: with corrected momentum."""
Precondition = Callable[[PyTree, PyTree, Rates, Any], tuple[PyTree, PyTree]]
"""Function (u, s, rates, dtype of scalars) → new u and s, in at least float32."""
Trust = Callable[[PyTree, LayerReport, np.ndarray, PyTree, Rates], jax.Array]
"""Function (u, report, bools (parameters,) of weight decay, parameters, rates) → trust ratios
(parameters,)."""

# XLA's GPU compiler updates parameters of equal shape in one kernel if they read different elements
# of one vector of less than 1,024 bytes (ParameterSlicesAreNonOverlapping). Otherwise ResNet-50
# takes 161 kernels, most of them for a few hundred elements.
_SHARED = 250


class RuleState(NamedTuple):
    """Optimizer state of a rule; trees like the parameters."""

    momentum: PyTree
    """Velocities v, with learning rates if these are inside; in LAMB, means of gradients."""
    second_moment: PyTree
    """Means of squared gradients s; None if the rule has none. Means have no bias correction."""
    report: LayerReport
    """Norms and trust ratios of the last update."""


def initial_state(params: PyTree, *, second_moment: bool = False) -> RuleState:
    """Return the state before the first update."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    squares = jax.tree.map(jnp.zeros_like, params) if second_moment else None
    return RuleState(zeros, squares, empty_report(params))


def momentum_rule(
    norms: Norms,
    *,
    outside: bool,
    nesterov: bool,
    decay_mask: Mask,
    precondition: Precondition | None = None,
    trust: Trust | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Return a rule with momentum m and a learning rate n for each parameter.

        u = g + wd·w,  preconditioned
        v ← m·v + trust·u,    w ← w − n·v     outside
        v ← m·v + n·trust·u,  w ← w − v       inside

    With Nesterov momentum, the new term plus m·v replaces v in the step, with the new v.

    Args:
        norms: A function from `norms_in`.
        outside: Whether the learning rate is outside of the velocity.
        nesterov: Nesterov momentum.
        decay_mask: Parameters with weight decay.
        precondition: Computes u from g + wd·w and squared gradients; None: no second moment.
        trust: Computes the trust ratios; None: 1.
    """

    def init(params: PyTree) -> RuleState:
        return initial_state(params, second_moment=precondition is not None)

    def update(
        grads: PyTree, state: RuleState, params: PyTree, *, rates: Rates, **_: Any
    ) -> tuple[PyTree, RuleState]:
        decayed = resolve_mask(decay_mask, params)
        directions = add_decay(grads, params, rates.weight_decay, decayed)
        report = measure(grads, params, norms)
        dtype, second, ratios = report.weight_norm.dtype, None, None
        if precondition is not None:
            directions, second = precondition(directions, state.second_moment, rates, dtype)
        if trust is not None:
            applies = np.asarray(jax.tree.leaves(decayed))
            ratios = trust(directions, report, applies, params, rates)
            report = report._replace(trust_ratio=ratios)
        rate = jnp.full(report.weight_norm.shape, rates.learning_rate, dtype)
        if not outside:
            ratios = rate if ratios is None else rate * ratios
        if ratios is not None:
            directions = scaled(ratios, directions, after=report)
        m = rates.momentum
        velocity = jax.tree.map(lambda u, v: times(m, v) + u, directions, state.momentum)
        steps = velocity
        if nesterov:
            steps = jax.tree.map(lambda u, v: u + times(m, v), directions, velocity)
        if outside:
            steps = scaled(rate, steps, after=report)
        state = RuleState(
            cast_like(velocity, state.momentum), cast_like(second, state.second_moment), report
        )
        return descent(steps, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def resolve_mask(mask: Mask, params: PyTree) -> PyTree:
    """Return a mask as a tree of bools like `params`."""
    if mask is None:
        mask = True
    return jax.tree.broadcast(mask(params) if callable(mask) else mask, params)


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


def scaled(factors: jax.Array, tree: PyTree, after: PyTree) -> PyTree:
    """Return each leaf of `tree` times its factor.

    Args:
        factors: Vector of shape (parameters,), in the order of `jax.tree.leaves`.
        tree: A tree like the parameters.
        after: Values that must be computed before any use of the factors. Parameters are updated in
            place, so that a norm computed later would need a copy of them.
    """
    pieces = [factors[start : start + _SHARED] for start in range(0, len(factors), _SHARED)]
    pieces, _ = jax.lax.optimization_barrier((pieces, after))
    leaves, structure = jax.tree.flatten(tree)
    scalars = (scalar for piece in pieces for scalar in piece)
    products = [scalar * x for scalar, x in zip(scalars, leaves, strict=True)]
    return jax.tree.unflatten(structure, products)


def cast_like(new: PyTree, old: PyTree) -> PyTree:
    """Cast the leaves of `new` to the dtypes of `old`."""
    return jax.tree.map(lambda x, like: x.astype(like.dtype), new, old)


def descent(steps: PyTree, params: PyTree) -> PyTree:
    """Return updates for `optax.apply_updates`: −step, in the dtype of the parameter."""
    return cast_like(jax.tree.map(jnp.negative, steps), params)


def with_clipping(
    rule: optax.GradientTransformationExtraArgs, limit: float, norms: Norms
) -> optax.GradientTransformationExtraArgs:
    """Return `rule` with gradients whose global norm is at most `limit`: g ← g·min(1, c / ‖g‖).

    ‖g‖ is the norm of all parameters together (Pascanu et al. 2013, arXiv 1211.5063, section 3.2).
    The formula is that of ``optax.clip_by_global_norm``; PyTorch's ``clip_grad_norm_`` divides by
    ‖g‖ + 1e-6 instead.

    The report has the gradient norms before clipping, so that a gradient that is not finite stays
    visible. Trust ratios and moments are those of the clipped gradient.

    Args:
        rule: An optimizer with a `report` in its state.
        limit: c, above 0.
        norms: A function from `norms_in`, which sums over devices if parameters are sharded.
    """

    def update(grads: PyTree, state: PyTree, params: PyTree, **more: Any) -> tuple[PyTree, PyTree]:
        report = measure(grads, params, norms)
        norm = global_norm(report)
        # The comparison is false for a norm that is not a number, which then spreads.
        factor = jnp.where(norm <= limit, 1, limit / norm)
        clipped = cast_like(jax.tree.map(lambda g: times(factor, g), grads), grads)
        updates, state = rule.update(clipped, state, params, **more)
        report = state.report._replace(gradient_norm=report.gradient_norm)
        return updates, state._replace(report=report)

    return optax.GradientTransformationExtraArgs(rule.init, update)


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
