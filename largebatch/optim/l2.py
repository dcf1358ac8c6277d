"""An L2 term of the loss, λ/2·‖w‖², through its gradient λ·w."""

from typing import Any

import optax

from largebatch.optim.momentum import Mask, add_decay, resolve_mask

PyTree = Any


def with_l2(
    rule: optax.GradientTransformationExtraArgs, coefficient: float, mask: Mask = None
) -> optax.GradientTransformationExtraArgs:
    """`rule`, given gradients of a loss with λ/2·‖w‖² in it.

    Unlike weight decay the term is in the norms of gradients that LARS sees, and in the report.

    Args:
        rule: Takes gradients of the loss without the term.
        coefficient: λ.
        mask: Parameters in the term.
    """

    def update(grads: PyTree, state: PyTree, params: PyTree, **more: Any) -> tuple[PyTree, PyTree]:
        grads = add_decay(grads, params, coefficient, resolve_mask(mask, params))
        return rule.update(grads, state, params, **more)

    return optax.GradientTransformationExtraArgs(rule.init, update)
