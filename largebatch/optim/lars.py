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

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.momentum import (
    Mask,
    accumulate,
    add_decay,
    descend,
    resolve_mask,
    spread,
    zero_velocity,
)
from largebatch.optim.norms import Layout, Norms, Total, norms_in
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any
Flavour = Literal["mlperf", "optax"]


class LarsState(NamedTuple):
    """What an update leaves to the next."""

    momentum: PyTree
    """Velocities v, learning rates included; a tree like the parameters."""
    report: LayerReport
    """Of the last update."""


class _Layers(NamedTuple):
    """What the denominators of the trust ratios are made of; vectors are (parameters,)."""

    weight_norm: jax.Array
    gradient_norm: jax.Array
    directions: Sequence[jax.Array]
    """u of each parameter, of its shape."""
    weight_decay: np.ndarray
    """0 for a parameter that is not decayed."""
    trusted: np.ndarray
    """Whether the parameter has a trust ratio; for the others nothing needs to be computed."""


def _sum_of_norms(layers: _Layers, norms: Norms) -> tuple[jax.Array, jax.Array]:
    del norms
    decay = jnp.asarray(layers.weight_decay, layers.weight_norm.dtype)
    return layers.gradient_norm, layers.gradient_norm + decay * layers.weight_norm


def _norm_of_sum(layers: _Layers, norms: Norms) -> tuple[jax.Array, jax.Array]:
    # Where nothing is decayed, u is g.
    differ = np.flatnonzero(layers.trusted & (layers.weight_decay != 0))
    norm = layers.gradient_norm
    if differ.size:
        (found,) = norms([layers.directions[i] for i in differ], inputs=2).astype(norm.dtype)
        place = np.arange(norm.size)
        place[differ] = norm.size + np.arange(differ.size)
        norm = jnp.concatenate([norm, found])[place]
    return norm, norm


# Each gives the norms that must not be 0, and the denominators before epsilon.
_DENOMINATORS: dict[str, Callable[[_Layers, Norms], tuple[jax.Array, jax.Array]]] = {
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
    layout: Layout = "auto",
    total: Total | None = None,
) -> optax.GradientTransformationExtraArgs:
    """LARS; the formulas are at the top of this module.

    `update(grads, state, params, *, rates)` takes the `Rates` of the step.

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
        layout: How norms are computed.
        total: Where a device holds parts of arrays only, see `norms_in`.

    Returns:
        A transformation with a `LarsState`.

    Raises:
        ConfigError: An unknown flavour or layout.
    """
    if flavour not in _DENOMINATORS:
        raise ConfigError(
            f"optimizer.flavour={flavour!r} is unknown; {did_you_mean(flavour, _DENOMINATORS)}"
        )
    denominators_of, norms = _DENOMINATORS[flavour], norms_in(layout, total)

    def trust_ratios(layers: _Layers) -> jax.Array:
        norm, denominator = denominators_of(layers, norms)
        applies = layers.trusted & (layers.weight_norm > 0) & (norm > 0)
        # A safe denominator too, lest `jax_debug_nans` stops at the branch not taken.
        denominator = jnp.where(applies, denominator + epsilon, 1)
        return jnp.where(applies, trust_coefficient * layers.weight_norm / denominator, 1)

    def init(params: PyTree) -> LarsState:
        return LarsState(zero_velocity(params), empty_report(params))

    def update(
        grads: PyTree,
        state: LarsState,
        params: PyTree,
        *,
        rates: Rates,
        **_: Any,
    ) -> tuple[PyTree, LarsState]:
        trusted, decayed = resolve_mask(trust_mask, params), resolve_mask(decay_mask, params)
        directions = add_decay(grads, params, weight_decay, decayed)
        report = measure(grads, params, norms)
        ratios = trust_ratios(
            _Layers(
                report.weight_norm,
                report.gradient_norm,
                jax.tree.leaves(directions),
                np.where(jax.tree.leaves(decayed), weight_decay, 0.0),
                np.asarray(jax.tree.leaves(trusted)),
            )
        )
        report = report._replace(trust_ratio=ratios)
        scaled = spread((rates.learning_rate * ratios).astype(ratios.dtype), params, after=report)
        inputs = jax.tree.map(lambda rate, u: rate * u, scaled, directions)
        steps, velocity = accumulate(inputs, state.momentum, momentum, nesterov=nesterov)
        return descend(steps, params), LarsState(velocity, report)

    return optax.GradientTransformationExtraArgs(init, update)
