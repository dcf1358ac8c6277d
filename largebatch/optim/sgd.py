"""SGD with momentum, and the transition from RMSprop to SGD.

SGD, with the learning rate n outside or inside the velocity:

    u = g + wd·w
    v ← m·v + u,    w ← w − n·v        outside: PyTorch, Goyal et al. 2017 (arXiv 1706.02677)
    v ← m·v + n·u,  w ← w − v          inside: MXNet

With Nesterov momentum, the new term plus m·v replaces v in the step. Outside, a change of n also
rescales past steps, so that no momentum correction is necessary (Goyal et al., section 3, remark
2).

RMSprop to SGD (Akiba, Suzuki & Fukuda 2017, arXiv 1711.04325):

    u = g + wd·w
    s ← b·s + (1 − b)·u²
    v ← m·v + (a + (1 − a)·(r / n) / (√s + epsilon))·u
    w ← w − n·v

a is the share of SGD, which increases from near 0 to 1 in the first epochs. r is the learning rate
of RMSprop: at a = 0, the step size is r and does not depend on the learning rate n of SGD.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from largebatch.optim.norms import DEFAULT, Norms
from largebatch.optim.rule import Mask, Placement, mean_squares, momentum_rule
from largebatch.optim.schedules import Rates

PyTree = Any


def sgd(
    *,
    rate: Placement = "outside",
    nesterov: bool = False,
    decay_mask: Mask = None,
    norms: Norms = DEFAULT,
) -> optax.GradientTransformationExtraArgs:
    """Return SGD; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd and m of the step's `Rates`. The host
    corrects the momentum for `inside_corrected`.

    Args:
        rate: Whether the velocity contains the learning rate.
        nesterov: Nesterov momentum.
        decay_mask: Parameters with weight decay.
        norms: Computation of the norms in the report, from `norms_in`.

    Returns:
        A transformation with a `RuleState`; the trust ratios of its report are 1.
    """
    return momentum_rule(
        norms,
        outside=rate == "outside",
        nesterov=nesterov,
        decay_mask=decay_mask,
    )


def rmsprop_sgd(
    *,
    second_momentum: float = 0.99,
    rmsprop_rate: float = 3e-4,
    epsilon: float = 1e-8,
    nesterov: bool = False,
    decay_mask: Mask = None,
    norms: Norms = DEFAULT,
) -> optax.GradientTransformationExtraArgs:
    """Return the transition from RMSprop to SGD; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd, m and a of the step's `Rates`.

    Args:
        second_momentum: b.
        rmsprop_rate: r.
        epsilon: Added to the root of the mean square.
        nesterov: Nesterov momentum.
        decay_mask: Parameters with weight decay.
        norms: Computation of the norms in the report, from `norms_in`.

    Returns:
        A transformation with a `RuleState`; the trust ratios of its report are 1.
    """

    def blend(directions: PyTree, held: PyTree, rates: Rates, dtype: Any) -> tuple[PyTree, PyTree]:
        second = mean_squares(directions, held, second_momentum)
        n, share = (jnp.asarray(x, dtype) for x in (rates.learning_rate, rates.sgd_share))
        # At n = 0, no weight changes, and only the share of SGD enters the velocity.
        moves = n > 0
        relative = jnp.where(moves, (1 - share) * rmsprop_rate / jnp.where(moves, n, 1), 0)
        blended = jax.tree.map(
            lambda u, s: (
                (share.astype(u.dtype) + relative.astype(u.dtype) / (jnp.sqrt(s) + epsilon)) * u
            ),
            directions,
            second,
        )
        return blended, second

    return momentum_rule(
        norms,
        outside=True,
        nesterov=nesterov,
        decay_mask=decay_mask,
        precondition=blend,
    )
