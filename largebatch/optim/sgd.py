"""SGD with momentum in the form of PyTorch and of Goyal et al. 2017 (arXiv 1706.02677).

    u = g + wd·w
    v ← m·v + u
    w ← w − n·v        Nesterov: w − n·(u + m·v)

The learning rate n is outside the velocity: a change of it rescales the past steps too, so no
momentum correction is needed (Goyal et al., section 3, remark 2).
"""

from typing import Any, NamedTuple

import jax
import optax

from largebatch.optim.momentum import (
    Mask,
    accumulate,
    add_decay,
    descend,
    resolve_mask,
    zero_velocity,
)
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any


class SgdState(NamedTuple):
    """Trees like the parameters."""

    momentum: PyTree
    """Velocities v, without learning rates."""
    report: LayerReport
    """Of the last update; the trust ratios are 1."""


def sgd(
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decay_mask: Mask = None,
) -> optax.GradientTransformationExtraArgs:
    """SGD; the formulas are at the top of this module.

    `update(grads, state, params, *, learning_rate)` takes the learning rate of the step, a scalar.

    Args:
        momentum: m.
        nesterov: Nesterov momentum.
        weight_decay: wd.
        decay_mask: Parameters that are decayed.

    Returns:
        A transformation with an `SgdState`.
    """

    def init(params: PyTree) -> SgdState:
        return SgdState(zero_velocity(params), empty_report(params))

    def update(
        grads: PyTree,
        state: SgdState,
        params: PyTree,
        *,
        learning_rate: jax.typing.ArrayLike,
        **_: Any,
    ) -> tuple[PyTree, SgdState]:
        directions = add_decay(grads, params, weight_decay, resolve_mask(decay_mask, params))
        steps, velocity = accumulate(directions, state.momentum, momentum, nesterov=nesterov)
        steps = jax.tree.map(lambda step: learning_rate * step, steps)
        return descend(steps, params), SgdState(velocity, measure(grads, params))

    return optax.GradientTransformationExtraArgs(init, update)
