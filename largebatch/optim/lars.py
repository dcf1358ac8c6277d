"""LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888): a learning rate for each layer.

For a weight w with gradient g, at learning rate n:

    u = g + wd·w
    trust = e·‖w‖ / (denominator + epsilon)
    v ← m·v + n·trust·u,  w ← w − v             rate inside
    v ← m·v + trust·u,    w ← w − n·v           rate outside

With Nesterov momentum, the new term plus m·v replaces v in the step. The denominator is
‖g‖ + wd·‖w‖ or ‖g + wd·w‖. `flavours` has the other differences between the published variants,
such as the treatment of zero norms.

If no norm is 0, the ratio with the norm of the sum is at least as large as the other one (triangle
inequality). Both are equal if w and g have the same direction or wd is 0. They also differ at
g = 0: `mlperf` decays with ratio 1, `optax` with e / wd. With the rate inside, a change of the
learning rate affects only new terms of v.
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
    """Optimizer state of LARS."""

    momentum: PyTree
    """Velocities v, with learning rates if these are inside; a tree like the parameters."""
    report: LayerReport
    """Norms and trust ratios of the last update."""


class _Layers(NamedTuple):
    """Inputs of the trust ratios; vectors have the shape (parameters,)."""

    weight_norm: jax.Array
    gradient_norm: jax.Array
    directions: Sequence[jax.Array]
    """u of each parameter, with the parameter's shape."""
    decayed: np.ndarray
    """Whether the parameter has weight decay."""
    trusted: np.ndarray
    """Whether the parameter has a trust ratio."""


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
    """Return LARS; the docstring of this module has the formulas.

    `update(grads, state, params, *, rates)` uses n, wd, m of the step's `Rates` and, for a
    denominator with the peak rate, `peak_decay`. The host corrects the momentum, if required.

    Args:
        flavour: Variant of LARS, see `lars_settings`.
        nesterov: Nesterov momentum, as defined by TensorFlow and optax.
        trust_mask: Parameters with a trust ratio; the ratio of the others is 1.
        decay_mask: Parameters with weight decay. For the others, wd is also 0 in the denominator.
        layout: Computation of norms, see `norms_in`.
        total: Reduction over devices for sharded parameters, see `norms_in`.
        chosen: Overrides of the flavour, see `lars_settings`. The masks replace `trust_skip` and
            `decay_skip`.

    Returns:
        A transformation with a `LarsState`.

    Raises:
        ConfigError: The flavour or layout is unknown, or settings contradict each other.
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
    """Return the trust ratio of each parameter, with shape (parameters,)."""
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
    # If the denominator is 0, the direction is 0 too.
    applies = layers.trusted & (denominator > 0)
    otherwise = jnp.ones_like(w)
    if settings.zero_norm == "none":
        otherwise = jnp.where(layers.trusted & (w == 0), 0.0, otherwise)
    else:
        applies &= w > 0
    if settings.zero_norm in ("either", "undecayed"):
        applies &= norm > 0
    if settings.zero_norm == "undecayed":
        # The gradient is 0, so that a ratio of 0 removes the weight decay from the direction.
        otherwise = jnp.where(layers.trusted & (norm == 0), 0.0, otherwise)
    # The safe denominator avoids NaN in the unused branch, where `jax_debug_nans` would stop.
    ratio = settings.trust_coefficient * w / jnp.where(applies, denominator, 1)
    if settings.trust_clip:
        ratio = jnp.clip(ratio, *settings.trust_clip)
    if settings.rate_clip:
        rate = jnp.asarray(rates.learning_rate, w.dtype)
        below = ratio < rate
        ratio = jnp.where(below, ratio / jnp.where(below, rate, 1), 1)
    return jnp.where(applies, ratio, otherwise)


def _norm_of_sum(layers: _Layers, norms: Norms) -> jax.Array:
    # Without weight decay, u is g.
    differ = np.flatnonzero(layers.trusted & layers.decayed)
    norm = layers.gradient_norm
    if differ.size:
        (found,) = norms([layers.directions[i] for i in differ], inputs=2).astype(norm.dtype)
        place = np.arange(norm.size)
        place[differ] = norm.size + np.arange(differ.size)
        norm = jnp.concatenate([norm, found])[place]
    return norm


def configured(options: Any, total: Total | None) -> optax.GradientTransformationExtraArgs:
    """Return LARS with the options of the section ``optimizer``; `norms_in` explains ``total``."""
    settings = lars_of(options)
    return lars(
        flavour=options.flavour,
        **vars(settings),
        nesterov=options.nesterov,
        trust_mask=skipping(settings.trust_skip),
        **shared(options, total, settings.decay_skip),
    )
