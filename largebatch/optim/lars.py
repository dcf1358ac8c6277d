"""LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888): a learning rate for each layer.

For a weight w with gradient g, at learning rate n:

    u = g + wd·w
    trust = e·‖w‖ / (denominator + epsilon)     1 if ‖w‖ or the gradient's norm is 0
    v ← m·v + n·trust·u
    w ← w − v                                   Nesterov: w − (n·trust·u + m·v)

The flavours differ in the denominator and in which norm is the gradient's there:

    mlperf    ‖g‖ + wd·‖w‖, ‖g‖       Algorithm 1 of the paper; TensorFlow 1 contrib.opt
                                      LARSOptimizer, the MLPerf reference
    optax     ‖g + wd·w‖, the same    `optax.lars`

Where no norm is 0, the ratio of `optax` is never the smaller one (triangle inequality); the two
agree where w and g point the same way or wd is 0. They also differ at g = 0: there `mlperf` decays
with ratio 1, `optax` with e / wd. The learning rate is inside the velocity: what a change of it
scales is the newest term, not the past.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.momentum import (
    Mask,
    accumulate,
    add_decay,
    descend,
    resolve_mask,
    zero_velocity,
)
from largebatch.optim.report import LayerReport, empty_report, l2_norm, measure

PyTree = Any
Flavour = Literal["mlperf", "optax"]


class LarsState(NamedTuple):
    """Trees like the parameters."""

    momentum: PyTree
    """Velocities v, learning rates included."""
    report: LayerReport
    """Of the last update."""


class _Layer(NamedTuple):
    """What the denominator of one parameter's trust ratio is made of."""

    weight_norm: jax.Array
    gradient_norm: jax.Array
    direction: jax.Array
    """u, of the parameter's shape."""
    weight_decay: float
    """0 for a parameter that is not decayed."""


def _sum_of_norms(layer: _Layer) -> tuple[jax.Array, jax.Array]:
    return layer.gradient_norm, layer.gradient_norm + layer.weight_decay * layer.weight_norm


def _norm_of_sum(layer: _Layer) -> tuple[jax.Array, jax.Array]:
    norm = l2_norm(layer.direction)
    return norm, norm


# Each gives the norm that must not be 0, and the denominator before epsilon.
_DENOMINATORS: dict[str, Callable[[_Layer], tuple[jax.Array, jax.Array]]] = {
    "mlperf": _sum_of_norms,
    "optax": _norm_of_sum,
}


def lars(
    *,
    flavour: Flavour,
    trust_coefficient: float = 0.001,
    epsilon: float = 0.0,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    trust_mask: Mask = None,
    decay_mask: Mask = None,
) -> optax.GradientTransformationExtraArgs:
    """LARS; the formulas are at the top of this module.

    `update(grads, state, params, *, learning_rate)` takes the learning rate of the step, a scalar.

    Args:
        flavour: Whose denominator.
        trust_coefficient: e.
        epsilon: Added to the denominator.
        momentum: m.
        nesterov: Nesterov momentum, as TensorFlow and optax define it.
        weight_decay: wd.
        trust_mask: Parameters that have a trust ratio; the others use 1, whether decayed or not.
        decay_mask: Parameters that are decayed. For the others wd is 0 everywhere, in the
            denominator too.

    Returns:
        A transformation with a `LarsState`.

    Raises:
        ConfigError: An unknown flavour.
    """
    if flavour not in _DENOMINATORS:
        raise ConfigError(
            f"optimizer.flavour={flavour!r} is unknown; {did_you_mean(flavour, _DENOMINATORS)}"
        )
    denominator_of = _DENOMINATORS[flavour]

    def trust_ratio(layer: _Layer) -> jax.Array:
        norm, denominator = denominator_of(layer)
        nonzero = (layer.weight_norm > 0) & (norm > 0)
        # A safe denominator too, lest `jax_debug_nans` stops at the branch not taken.
        denominator = jnp.where(nonzero, denominator + epsilon, 1)
        return jnp.where(nonzero, trust_coefficient * layer.weight_norm / denominator, 1)

    def init(params: PyTree) -> LarsState:
        return LarsState(zero_velocity(params), empty_report(params))

    def update(
        grads: PyTree,
        state: LarsState,
        params: PyTree,
        *,
        learning_rate: jax.typing.ArrayLike,
        **_: Any,
    ) -> tuple[PyTree, LarsState]:
        trusted, decayed = resolve_mask(trust_mask, params), resolve_mask(decay_mask, params)
        directions = add_decay(grads, params, weight_decay, decayed)
        report = measure(grads, params)

        def ratio(
            one: jax.Array, w: jax.Array, g: jax.Array, u: jax.Array, trust: bool, decay: bool
        ) -> jax.Array:
            layer = _Layer(w, g, u, weight_decay if decay else 0.0)
            return trust_ratio(layer).astype(one.dtype) if trust else one

        ratios = jax.tree.map(ratio, *report, directions, trusted, decayed)
        inputs = jax.tree.map(lambda trust, u: learning_rate * trust * u, ratios, directions)
        steps, velocity = accumulate(inputs, state.momentum, momentum, nesterov=nesterov)
        return descend(steps, params), LarsState(velocity, report._replace(trust_ratio=ratios))

    return optax.GradientTransformationExtraArgs(init, update)
