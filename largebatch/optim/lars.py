"""LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888): a learning rate for each layer.

For a weight w with gradient g, at learning rate n:

    u = g + wd·w
    trust = e·‖w‖ / (denominator + epsilon)
    v ← m·v + n·trust·u,  w ← w − v             rate inside
    v ← m·v + trust·u,    w ← w − n·v           rate outside

With Nesterov momentum the newest term and m·v take the place of v in the step. The denominator is
‖g‖ + wd·‖w‖ or ‖g + wd·w‖; what else differs between the published variants, such as what a zero
norm does, is in `flavours`.

Where no norm is 0, the ratio of the norm of the sum is never the smaller one (triangle inequality);
the two agree where w and g point the same way or wd is 0. They also differ at g = 0: there `mlperf`
decays with ratio 1, `optax` with e / wd. With the rate inside, what a change of it scales is the
newest term, not the past.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.optim.configured import shared, skipping
from largebatch.optim.flavours import LarsSettings, lars_of, lars_settings
from largebatch.optim.momentum import (
    Mask,
    add_decay,
    advance,
    descend,
    resolve_mask,
    zero_velocity,
)
from largebatch.optim.norms import Layout, Norms, Total, norms_in
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, empty_report, measure

PyTree = Any


class LarsState(NamedTuple):
    """What an update leaves to the next."""

    momentum: PyTree
    """Velocities v, with learning rates if those are inside; a tree like the parameters."""
    report: LayerReport
    """Of the last update."""


class _Layers(NamedTuple):
    """What trust ratios are made of; vectors are (parameters,)."""

    weight_norm: jax.Array
    gradient_norm: jax.Array
    directions: Sequence[jax.Array]
    """u of each parameter, of its shape."""
    decayed: np.ndarray
    """Whether the parameter is decayed."""
    trusted: np.ndarray
    """Whether the parameter has a trust ratio; for the others nothing needs to be computed."""


def lars(
    *,
    flavour: str = "mlperf",
    nesterov: bool = False,
    trust_mask: Mask = None,
    decay_mask: Mask = None,
    layout: Layout = "auto",
    total: Total | None = None,
    **chosen: Any,
) -> optax.GradientTransformationExtraArgs:
    """LARS; the formulas are at the top of this module.

    `update(grads, state, params, *, rates)` takes the `Rates` of the step: n, wd, m and, for a
    denominator with the peak rate in it, `peak_decay`. Momentum is used as it is given: correcting
    it is up to the host.

    Args:
        flavour: Which LARS, as of `lars_settings`.
        nesterov: Nesterov momentum, as TensorFlow and optax define it.
        trust_mask: Parameters that have a trust ratio; the others use 1, whether decayed or not.
        decay_mask: Parameters that are decayed. For the others wd is 0 everywhere, in the
            denominator too.
        layout: How norms are computed.
        total: Where a device holds parts of arrays only, see `norms_in`.
        chosen: Settings of it, as of `lars_settings`; kinds to skip are not looked at here.

    Returns:
        A transformation with a `LarsState`.

    Raises:
        ConfigError: An unknown flavour or layout, or settings that contradict each other.
    """
    made = lars_settings(flavour, **chosen)
    norms = norms_in(layout, total)

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
        directions = add_decay(grads, params, rates.weight_decay, decayed)
        report = measure(grads, params, norms)
        layers = _Layers(
            report.weight_norm,
            report.gradient_norm,
            jax.tree.leaves(directions),
            np.asarray(jax.tree.leaves(decayed)),
            np.asarray(jax.tree.leaves(trusted)),
        )
        report = report._replace(trust_ratio=_trust_ratios(made, layers, rates, norms))
        steps, velocity = advance(
            directions,
            report.trust_ratio,
            state.momentum,
            rates,
            outside=made.rate == "outside",
            nesterov=nesterov,
            after=report,
        )
        return descend(steps, params), LarsState(velocity, report)

    return optax.GradientTransformationExtraArgs(init, update)


def _trust_ratios(settings: LarsSettings, layers: _Layers, rates: Rates, norms: Norms) -> jax.Array:
    """(parameters,): the factor of each direction."""
    w, g = layers.weight_norm, layers.gradient_norm
    if settings.denominator == "norm_of_sum":
        norm = _norm_of_sum(layers, norms)
        denominator = norm + settings.epsilon
    else:
        peak = settings.denominator_decay == "decay_times_peak"
        decay = jnp.asarray(rates.peak_decay if peak else rates.weight_decay, w.dtype)
        norm, denominator = g, g + decay * layers.decayed * w + settings.epsilon
    if settings.zero_norm == "undecayed":
        norm = g
    # Where nothing is below the fraction there is no direction either.
    applies = layers.trusted & (denominator > 0)
    otherwise = jnp.ones_like(w)
    if settings.zero_norm == "none":
        otherwise = jnp.where(layers.trusted & (w == 0), 0.0, otherwise)
    else:
        applies &= w > 0
    if settings.zero_norm in ("either", "undecayed"):
        applies &= norm > 0
    if settings.zero_norm == "undecayed":
        # Without decay the direction is the gradient, here 0: the factor takes out the decay.
        otherwise = jnp.where(layers.trusted & (norm == 0), 0.0, otherwise)
    # A safe denominator too, lest `jax_debug_nans` stops at the branch not taken.
    ratio = settings.trust_coefficient * w / jnp.where(applies, denominator, 1)
    if settings.trust_clip:
        ratio = jnp.clip(ratio, *settings.trust_clip)
    if settings.rate_clip:
        rate = jnp.asarray(rates.learning_rate, w.dtype)
        below = ratio < rate
        ratio = jnp.where(below, ratio / jnp.where(below, rate, 1), 1)
    return jnp.where(applies, ratio, otherwise)


def _norm_of_sum(layers: _Layers, norms: Norms) -> jax.Array:
    # Where nothing is decayed, u is g.
    differ = np.flatnonzero(layers.trusted & layers.decayed)
    norm = layers.gradient_norm
    if differ.size:
        (found,) = norms([layers.directions[i] for i in differ], inputs=2).astype(norm.dtype)
        place = np.arange(norm.size)
        place[differ] = norm.size + np.arange(differ.size)
        norm = jnp.concatenate([norm, found])[place]
    return norm


def configured(options: Any, total: Total | None) -> optax.GradientTransformationExtraArgs:
    """Return the rule of the options of the section ``optimizer``; ``total`` as of `norms_in`."""
    settings = lars_of(options)
    return lars(
        flavour=options.flavour,
        **vars(settings),
        nesterov=options.nesterov,
        trust_mask=skipping(settings.trust_skip),
        **shared(options, total, settings.decay_skip),
    )
