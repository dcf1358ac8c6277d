"""L2 term λ/2·‖w‖² of the loss, implemented by its gradient λ·w."""

from typing import Any

import optax

from largebatch.optim.momentum import Mask, add_decay, resolve_mask

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
