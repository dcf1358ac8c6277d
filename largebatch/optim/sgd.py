"""SGD with momentum, the learning rate n outside or inside the velocity.

    u = g + wd·w
    v ← m·v + u,    w ← w − n·v        outside: PyTorch, Goyal et al. 2017 (arXiv 1706.02677)
    v ← m·v + n·u,  w ← w − v          inside: MXNet

With Nesterov momentum the newest term and m·v take the place of v in the step. Outside, a change of
n rescales the past steps too, so no momentum correction is needed (Goyal et al., section 3, remark
2). Decoupled (Loshchilov & Hutter 2019, arXiv 1711.05101: SGDW) u is g and wd·w is subtracted from
w beside the step; the learning rate's schedule is then in wd.
"""

from typing import Any, NamedTuple

import jax
import optax

from largebatch.optim.configured import shared
from largebatch.optim.momentum import (
    Mask,
    add_decay,
    advance,
    descend,
    resolve_mask,
    zero_velocity,
)
from largebatch.optim.norms import Layout, Total, at_least_float32, norms_in
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any


class SgdState(NamedTuple):
    """What an update leaves to the next."""

    momentum: PyTree
    """Velocities v, with learning rates if those are inside; a tree like the parameters."""
    report: LayerReport
    """Of the last update; the trust ratios are 1."""


def sgd(
    *,
    nesterov: bool = False,
    inside: bool = False,
    decoupled: bool = False,
    decay_mask: Mask = None,
    layout: Layout = "auto",
    total: Total | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD; the formulas are at the top of this module.

    `update(grads, state, params, *, rates)` takes the `Rates` of the step: n, wd and m.

    Args:
        nesterov: Nesterov momentum.
        inside: The learning rate is inside the velocity.
        decoupled: Weight decay acts on the weights, not through the gradient.
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
        decayed = resolve_mask(decay_mask, params)
        directions = jax.tree.map(at_least_float32, grads)
        if not decoupled:
            directions = add_decay(directions, params, rates.weight_decay, decayed)
        report = measure(grads, params, norms)
        steps, velocity = advance(
            directions,
            None,
            state.momentum,
            rates,
            outside=not inside,
            nesterov=nesterov,
            after=report,
        )
        if decoupled:
            steps = add_decay(steps, params, rates.weight_decay, decayed)
        return descend(steps, params), SgdState(velocity, report)

    return optax.GradientTransformationExtraArgs(init, update)


def configured(options: Any, total: Total | None) -> optax.GradientTransformationExtraArgs:
    """Return the rule of the options of the section ``optimizer``; ``total`` as of `norms_in`."""
    return sgd(
        nesterov=options.nesterov,
        inside=options.rate in ("inside", "inside_corrected"),
        decoupled=options.decay == "decoupled",
        **shared(options, total, options.decay_skip),
    )
