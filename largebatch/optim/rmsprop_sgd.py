"""Transition from RMSprop to SGD (Akiba, Suzuki & Fukuda 2017, arXiv 1711.04325).

    u = g + wd·w
    s ← b·s + (1 − b)·u²
    v ← m·v + (a + (1 − a)·(r / n) / (√s + epsilon))·u
    w ← w − n·v

a is the share of SGD, which increases from near 0 to 1 in the first epochs. r is the learning rate
of RMSprop: at a = 0, the step size is r and does not depend on the learning rate n of SGD.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from largebatch.optim.configured import chosen, shared
from largebatch.optim.momentum import (
    Mask,
    add_decay,
    advance,
    cast_like,
    descend,
    mean_squares,
    resolve_mask,
    zero_velocity,
)
from largebatch.optim.norms import Layout, Total, norms_in
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any


class RmspropSgdState(NamedTuple):
    """Optimizer state of the transition from RMSprop to SGD."""

    momentum: PyTree
    """Velocities v, without learning rates; a tree like the parameters."""
    second_moment: PyTree
    """Means of squared gradients s; a tree like the parameters."""
    report: LayerReport
    """Norms of the last update; the trust ratios are 1."""


def rmsprop_sgd(
    *,
    second_momentum: float = 0.99,
    rmsprop_rate: float = 3e-4,
    epsilon: float = 1e-8,
    nesterov: bool = False,
    decay_mask: Mask = None,
    layout: Layout = "auto",
    total: Total | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Return the transition from RMSprop to SGD; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd, m and a of the step's `Rates`.

    Args:
        second_momentum: b.
        rmsprop_rate: r.
        epsilon: Added to the root of the mean square.
        nesterov: Nesterov momentum.
        decay_mask: Parameters with weight decay.
        layout: Computation of the norms in the report, see `norms_in`.
        total: Reduction over devices for sharded parameters, see `norms_in`.

    Returns:
        A transformation with an `RmspropSgdState`.

    Raises:
        ConfigError: The layout is unknown.
    """
    norms = norms_in(layout, total)

    def init(params: PyTree) -> RmspropSgdState:
        return RmspropSgdState(zero_velocity(params), zero_velocity(params), empty_report(params))

    def update(
        grads: PyTree,
        state: RmspropSgdState,
        params: PyTree,
        *,
        rates: Rates,
        **_: Any,
    ) -> tuple[PyTree, RmspropSgdState]:
        decayed = resolve_mask(decay_mask, params)
        gradients = add_decay(grads, params, rates.weight_decay, decayed)
        second = mean_squares(gradients, state.second_moment, second_momentum)
        report = measure(grads, params, norms)
        dtype = report.weight_norm.dtype
        n, share = (jnp.asarray(x, dtype) for x in (rates.learning_rate, rates.sgd_share))
        # At n = 0, no weight changes, and only the share of SGD enters the velocity.
        moves = n > 0
        relative = jnp.where(moves, (1 - share) * rmsprop_rate / jnp.where(moves, n, 1), 0)
        directions = jax.tree.map(
            lambda g, s: (
                (share.astype(g.dtype) + relative.astype(g.dtype) / (jnp.sqrt(s) + epsilon)) * g
            ),
            gradients,
            second,
        )
        steps, velocity = advance(
            directions,
            None,
            state.momentum,
            rates,
            outside=True,
            nesterov=nesterov,
            after=report,
        )
        second = cast_like(second, state.second_moment)
        return descend(steps, params), RmspropSgdState(velocity, second, report)

    return optax.GradientTransformationExtraArgs(init, update)


def configured(options: Any, total: Total | None) -> optax.GradientTransformationExtraArgs:
    """Return the rule with the options of the section ``optimizer``; `norms_in` has ``total``."""
    return rmsprop_sgd(
        second_momentum=chosen(options.second_momentum, 0.99),
        rmsprop_rate=options.rmsprop_rate,
        epsilon=chosen(options.epsilon, 1e-8),
        nesterov=options.nesterov,
        **shared(options, total, options.decay_skip),
    )
