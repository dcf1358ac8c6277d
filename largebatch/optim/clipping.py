"""Clipping of the gradient by its global norm (Pascanu et al. 2013, arXiv 1211.5063, section 3.2).

    g ← g · min(1, c / ‖g‖)

‖g‖ is the norm of all parameters together. The formula is that of ``optax.clip_by_global_norm``;
PyTorch's ``clip_grad_norm_`` divides by ‖g‖ + 1e-6 instead.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from largebatch.optim.momentum import cast_like, times
from largebatch.optim.norms import Norms
from largebatch.optim.report import global_norm, measure

PyTree = Any


def with_clipping(
    rule: optax.GradientTransformationExtraArgs, limit: float, norms: Norms
) -> optax.GradientTransformationExtraArgs:
    """Return `rule` with gradients whose global norm is at most `limit`.

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
