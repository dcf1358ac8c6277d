"""SGD with momentum in the form of PyTorch and of Goyal et al. 2017 (arXiv 1706.02677).

    u = g + wd·w
    v ← m·v + u
    w ← w − n·v        Nesterov: w − n·(u + m·v)

The learning rate n is outside the velocity: a change of it rescales the past steps too, so no
momentum correction is needed (Goyal et al., section 3, remark 2).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from largebatch.optim.momentum import (
    Mask,
    accumulate,
    add_decay,
    descend,
    resolve_mask,
    spread,
    zero_velocity,
)
from largebatch.optim.norms import Layout, Total, norms_in
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any


class SgdState(NamedTuple):
    """What an update leaves to the next."""

    momentum: PyTree
    """Velocities v, without learning rates; a tree like the parameters."""
    report: LayerReport
    """Of the last update; the trust ratios are 1."""


def sgd(
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decay_mask: Mask = None,
    layout: Layout = "auto",
    total: Total | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD; the formulas are at the top of this module.

    `update(grads, state, params, *, rates)` takes the `Rates` of the step.

    Args:
        momentum: m.
        nesterov: Nesterov momentum.
        weight_decay: wd.
        decay_mask: Parameters that are decayed.
        layout: How the norms of the report are computed.
        total: Where a device holds parts of arrays only, see `norms_in`.

    Returns:
        A transformation with an `SgdState`.

    Raises:
        ConfigError: An unknown layout.
    """
    norms = norms_in(layout, total)

    def init(params: PyTree) -> SgdState:
        return SgdState(zero_velocity(params), empty_report(params))

    def update(
        grads: PyTree,
        state: SgdState,
        params: PyTree,
        *,
        rates: Rates,
        **_: Any,
    ) -> tuple[PyTree, SgdState]:
        directions = add_decay(grads, params, weight_decay, resolve_mask(decay_mask, params))
        steps, velocity = accumulate(directions, state.momentum, momentum, nesterov=nesterov)
        report = measure(grads, params, norms)
        scaled = spread(
            jnp.full_like(report.trust_ratio, rates.learning_rate), params, after=report
        )
        steps = jax.tree.map(lambda rate, step: rate * step, scaled, steps)
        return descend(steps, params), SgdState(velocity, report)

    return optax.GradientTransformationExtraArgs(init, update)
