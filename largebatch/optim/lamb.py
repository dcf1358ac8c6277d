"""LAMB (You et al. 2020, arXiv 1904.00962): Adam with a learning rate for each layer.

    v ← m·v + (1 − m)·g,  s ← b·s + (1 − b)·g²
    u = (v / (1 − m^t)) / (√(s / (1 − b^t)) + epsilon) + wd·w
    w ← w − n·(‖w‖ / ‖u‖)·u

t is the number of the update, from 1. The ratio is 1 if either norm is 0. v does not contain the
learning rate, so that a change of the learning rate affects only the new step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.optim.norms import DEFAULT, Norms, measure
from largebatch.optim.rule import (
    Mask,
    RuleState,
    add_decay,
    cast_like,
    descent,
    initial_state,
    mean_squares,
    resolve_mask,
    scaled,
    times,
)
from largebatch.optim.schedules import Rates

PyTree = Any


def lamb(
    *,
    second_momentum: float = 0.999,
    epsilon: float = 1e-6,
    trust_mask: Mask = None,
    decay_mask: Mask = None,
    norms: Norms = DEFAULT,
) -> optax.GradientTransformationExtraArgs:
    """Return LAMB; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd, m and t of the step's `Rates`.

    Args:
        second_momentum: b.
        epsilon: Added to the root of the mean square.
        trust_mask: Parameters with a trust ratio; the ratio of the others is 1.
        decay_mask: Parameters with weight decay.
        norms: Computation of norms, from `norms_in`.

    Returns:
        A transformation with a `RuleState`.
    """

    def init(params: PyTree) -> RuleState:
        return initial_state(params, second_moment=True)

    def update(
        grads: PyTree, state: RuleState, params: PyTree, *, rates: Rates, **_: Any
    ) -> tuple[PyTree, RuleState]:
        trusted, decayed = resolve_mask(trust_mask, params), resolve_mask(decay_mask, params)
        report = measure(grads, params, norms)
        dtype = report.weight_norm.dtype
        m, t = (jnp.asarray(x, dtype) for x in (rates.momentum, rates.step))
        first = jax.tree.map(lambda g, v: times(m, v) + times(1 - m, g), grads, state.momentum)
        second = mean_squares(grads, state.second_moment, second_momentum)
        seen, seen_squares = (1 - x**t for x in (m, jnp.asarray(second_momentum, dtype)))
        directions = jax.tree.map(
            lambda v, s: (
                (v / seen.astype(v.dtype)) / (jnp.sqrt(s / seen_squares.astype(s.dtype)) + epsilon)
            ),
            first,
            second,
        )
        directions = add_decay(directions, params, rates.weight_decay, decayed)
        (norm,) = norms(jax.tree.leaves(directions), inputs=3).astype(dtype)
        applies = np.asarray(jax.tree.leaves(trusted)) & (report.weight_norm > 0) & (norm > 0)
        ratio = jnp.where(applies, report.weight_norm / jnp.where(applies, norm, 1), 1)
        report = report._replace(trust_ratio=ratio)
        rate = (rates.learning_rate * ratio).astype(dtype)
        steps = scaled(rate, directions, after=report)
        state = RuleState(
            cast_like(first, state.momentum), cast_like(second, state.second_moment), report
        )
        return descent(steps, params), state

    return optax.GradientTransformationExtraArgs(init, update)
