"""LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888): a learning rate for each layer.

For a weight w with gradient g, at learning rate n:

    u = g + wd·w
    trust = e·‖w‖ / (denominator + epsilon)
    v ← m·v + n·trust·u,  w ← w − v             rate inside
    v ← m·v + trust·u,    w ← w − n·v           rate outside

With Nesterov momentum, the new term plus m·v replaces v in the step. The denominator is
‖g‖ + wd·‖w‖ or ‖g + wd·w‖. `LarsSettings` has the other differences between the published
variants, such as the treatment of zero norms.

If no norm is 0, the ratio with the norm of the sum is at least as large as the other one (triangle
inequality). Both are equal if w and g have the same direction or wd is 0. They also differ at
g = 0: `mlperf` decays with ratio 1, `optax` with e / wd. With the rate inside, a change of the
learning rate affects only new terms of v.

Published variants, which are settings of one implementation:

flavour   source                                         differences
mlperf    TensorFlow 1 contrib.opt LARSOptimizer, the    You et al. 2017; ratio 1 at a zero norm
          MLPerf reference
you2017   You et al. 2017 (arXiv 1708.03888), alg. 1     no special case for zero norms: a zero
                                                         weight has ratio 0 and stays zero
nvidia    SGDwFASTLARS of NVIDIA's MXNet submissions     momentum corrected for the change of
          to MLPerf v0.6 and later                       the learning rate; decays the bias
fujitsu   multi_mp_sgd_two_stage_lars_mom_update of      n0·L in the denominator, epsilon 1e-9,
          Fujitsu's submission to MLPerf v0.6            ratio 1 only for a zero weight
optax     optax.lars                                     norm of the sum; all parameters
apex      NVIDIA apex LARC                               rate outside and clipped, e = 0.02; no
                                                         decay at a zero norm; all parameters
ascend    LARSV2 of Huawei's TensorFlow, in SIAT's       rate outside, epsilon 1e-5; a zero
          submission to MLPerf v0.7                      weight stays zero
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.norms import DEFAULT, LayerReport, Norms
from largebatch.optim.rule import Mask, Placement, momentum_rule, resolve_mask
from largebatch.optim.schedules import Rates
from largebatch.registry import parse_options

PyTree = Any


@dataclasses.dataclass(frozen=True)
class LarsSettings:
    """Settings that differ between the variants of LARS; `lars` has the formulas."""

    denominator: Literal["sum_of_norms", "norm_of_sum"] = "sum_of_norms"
    """‖g‖ + wd·‖w‖, or ‖g + wd·w‖."""
    denominator_decay: Literal["decay", "decay_times_peak"] = "decay"
    """wd in the sum of norms: the decay of the step, or the coefficient times the peak rate."""
    epsilon: float = 0.0
    """Added to the denominator."""
    trust_coefficient: float = 0.001
    """e in the formula of the trust ratio."""
    rate: Placement = "inside"
    """Whether velocities contain the learning rate; `inside_corrected`: with corrected momentum."""
    zero_norm: Literal["either", "weight", "undecayed", "none"] = "either"
    """When the ratio is 1. `either`: the norm of weight or gradient is 0; `weight`: the norm of the
    weight is 0; `undecayed`: as `either`, and without weight decay; `none`: never."""
    rate_clip: bool = False
    """Replace ratio by min(ratio / n, 1), which limits the learning rate of a layer to n."""
    trust_clip: tuple[float, ...] = ()
    """(least, greatest) ratio; empty: no limits."""
    trust_skip: tuple[str, ...] = ("bn", "bias")
    """Kinds of parameter without a trust ratio."""
    decay_skip: tuple[str, ...] = ("bn", "bias")
    """Kinds of parameter without weight decay."""

    def __post_init__(self) -> None:
        if self.denominator == "norm_of_sum" and self.denominator_decay != "decay":
            raise ConfigError(
                "optimizer.flavour: denominator_decay='decay_times_peak' is impossible with "
                "denominator='norm_of_sum', which contains the decay of the step; use "
                "'sum_of_norms' or denominator_decay='decay'"
            )
        clip = self.trust_clip
        if clip and not (len(clip) == 2 and 0 <= clip[0] <= clip[1]):
            raise ConfigError(
                f"optimizer.flavour: trust_clip={clip}; expected the least and the greatest ratio, "
                "such as (1e-5,1), or ()"
            )


FLAVOURS: Mapping[str, LarsSettings] = {
    "mlperf": LarsSettings(),
    "you2017": LarsSettings(zero_norm="none"),
    "nvidia": LarsSettings(rate="inside_corrected", decay_skip=("bn",)),
    "fujitsu": LarsSettings(
        denominator_decay="decay_times_peak",
        epsilon=1e-9,
        trust_coefficient=0.0025,
        zero_norm="weight",
    ),
    "optax": LarsSettings(denominator="norm_of_sum", trust_skip=(), decay_skip=()),
    "apex": LarsSettings(
        epsilon=1e-8,
        trust_coefficient=0.02,
        rate="outside",
        zero_norm="undecayed",
        rate_clip=True,
        trust_skip=(),
        decay_skip=(),
    ),
    "ascend": LarsSettings(epsilon=1e-5, rate="outside", zero_norm="none"),
}


def lars_settings(flavour: str, **chosen: Any) -> LarsSettings:
    """Return the settings of a flavour with overrides.

    Args:
        flavour: One of `FLAVOURS`, or one with details of one's own, ``NAME FIELD=VALUE …``, where
            the values are Python literals: ``apex rate_clip=False trust_clip=(1e-5,1)``.
        chosen: Overrides by name; None and 'auto' keep the value of the flavour.

    Raises:
        ConfigError: The flavour is unknown, or settings contradict each other.
    """
    name, _, details = flavour.strip().partition(" ")
    if name not in FLAVOURS:
        raise ConfigError(f"optimizer.flavour={name!r} is unknown; {did_you_mean(name, FLAVOURS)}")
    own = parse_options(details, "optimizer.flavour")
    fields = [field.name for field in dataclasses.fields(LarsSettings)]
    for unknown in sorted(own.keys() - {*fields}):
        hint = did_you_mean(unknown, fields)
        if unknown == "nesterov":  # an option, not a part of the variants
            hint = "use --config.optimizer.nesterov=True"
        raise ConfigError(f"optimizer.flavour: no {unknown!r}; {hint}")
    given = {name: value for name, value in chosen.items() if value not in (None, "auto")}
    return dataclasses.replace(FLAVOURS[name], **(own | given))


def lars_of(options: Any) -> LarsSettings:
    """Return the LARS settings of the section ``optimizer``.

    Args:
        options: The section, with ``flavour`` and attributes for some settings; 'auto' keeps the
            value of the flavour.

    Raises:
        ConfigError: Settings contradict each other.
    """
    names = [field.name for field in dataclasses.fields(LarsSettings)]
    chosen = {name: getattr(options, name) for name in names if hasattr(options, name)}
    return lars_settings(options.flavour, **chosen)


def lars(
    *,
    flavour: str = "mlperf",
    nesterov: bool = False,
    trust_mask: Mask = None,
    decay_mask: Mask = None,
    norms: Norms = DEFAULT,
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
        norms: Computation of norms, from `norms_in`.
        chosen: Overrides of the flavour, see `lars_settings`. The masks replace `trust_skip` and
            `decay_skip`.

    Returns:
        A transformation with a `RuleState`.

    Raises:
        ConfigError: The flavour is unknown, or settings contradict each other.
    """
    settings = lars_settings(flavour, **chosen)

    def trust(
        directions: PyTree, report: LayerReport, decayed: np.ndarray, params: PyTree, rates: Rates
    ) -> jax.Array:
        trusted = np.asarray(jax.tree.leaves(resolve_mask(trust_mask, params)))
        sums = report.gradient_norm
        # Without weight decay, u is g.
        differ = np.flatnonzero(trusted & decayed)
        if settings.denominator == "norm_of_sum" and differ.size:
            leaves = jax.tree.leaves(directions)
            (found,) = norms([leaves[i] for i in differ], inputs=2).astype(sums.dtype)
            place = np.arange(sums.size)
            place[differ] = sums.size + np.arange(differ.size)
            sums = jnp.concatenate([sums, found])[place]
        return _trust_ratios(settings, report, sums, decayed, trusted, rates)

    return momentum_rule(
        norms,
        outside=settings.rate == "outside",
        nesterov=nesterov,
        decay_mask=decay_mask,
        trust=trust,
    )


def _trust_ratios(
    settings: LarsSettings,
    report: LayerReport,
    sums: jax.Array,
    decayed: np.ndarray,
    trusted: np.ndarray,
    rates: Rates,
) -> jax.Array:
    """Return the trust ratio of each parameter; all vectors have the shape (parameters,).

    Args:
        settings: Variant of LARS.
        report: ‖w‖ and ‖g‖.
        sums: ‖u‖ where ratios are used, if the denominator is the norm of the sum.
        decayed: Whether the parameter has weight decay.
        trusted: Whether the parameter has a trust ratio.
        rates: Hyperparameters of the step.
    """
    w, g = report.weight_norm, report.gradient_norm
    if settings.denominator == "norm_of_sum":
        norm, denominator = sums, sums + settings.epsilon
    else:
        peak = settings.denominator_decay == "decay_times_peak"
        decay = jnp.asarray(rates.peak_decay if peak else rates.weight_decay, w.dtype)
        norm, denominator = g, g + decay * decayed * w + settings.epsilon
    if settings.zero_norm == "undecayed":
        norm = g
    # If the denominator is 0, the direction is 0 too.
    applies = trusted & (denominator > 0)
    otherwise = jnp.ones_like(w)
    if settings.zero_norm == "none":
        otherwise = jnp.where(trusted & (w == 0), 0.0, otherwise)
    else:
        applies &= w > 0
    if settings.zero_norm in ("either", "undecayed"):
        applies &= norm > 0
    if settings.zero_norm == "undecayed":
        # The gradient is 0, so that a ratio of 0 removes the weight decay from the direction.
        otherwise = jnp.where(trusted & (norm == 0), 0.0, otherwise)
    # The safe denominator avoids NaN in the unused branch, where `jax_debug_nans` would stop.
    ratio = settings.trust_coefficient * w / jnp.where(applies, denominator, 1)
    if settings.trust_clip:
        ratio = jnp.clip(ratio, *settings.trust_clip)
    if settings.rate_clip:
        rate = jnp.asarray(rates.learning_rate, w.dtype)
        below = ratio < rate
        ratio = jnp.where(below, ratio / jnp.where(below, rate, 1), 1)
    return jnp.where(applies, ratio, otherwise)
