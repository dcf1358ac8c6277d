"""SGD with momentum, and with the learning rate n outside or inside the velocity.

    u = g + wd·w
    v ← m·v + u,    w ← w − n·v        outside: PyTorch, Goyal et al. 2017 (arXiv 1706.02677)
    v ← m·v + n·u,  w ← w − v          inside: MXNet

With Nesterov momentum, the new term plus m·v replaces v in the step. Outside, a change of n also
rescales past steps, so that no momentum correction is necessary (Goyal et al., section 3, remark
2).
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
    """Optimizer state of SGD."""

    momentum: PyTree
    """Velocities v, with learning rates if these are inside; a tree like the parameters."""
    report: LayerReport
    """Norms of the last update; the trust ratios are 1."""


def sgd(
    *,
    nesterov: bool = False,
    inside: bool = False,
    decay_mask: Mask = None,
    layout: Layout = "auto",
    total: Total | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Return SGD; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd and m of the step's `Rates`.

    Args:
        nesterov: Nesterov momentum.
        inside: Whether the learning rate is inside the velocity.
        decay_mask: Parameters with weight decay.
        layout: Computation of the norms in the report, see `norms_in`.
        total: Reduction over devices for sharded parameters, see `norms_in`.

    Returns:
        A transformation with an `SgdState`.

    Raises:
        ConfigError: The layout is unknown.
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
        return descend(steps, params), SgdState(velocity, report)

    return optax.GradientTransformationExtraArgs(init, update)


def configured(options: Any, total: Total | None) -> optax.GradientTransformationExtraArgs:
    """Return SGD with the options of the section ``optimizer``; `norms_in` explains ``total``."""
    return sgd(
        nesterov=options.nesterov,
        inside=options.rate in ("inside", "inside_corrected"),
        **shared(options, total, options.decay_skip),
    )
