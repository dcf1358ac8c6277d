"""Published variants of LARS, as settings of one implementation.

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

from largebatch.errors import ConfigError, did_you_mean
from largebatch.registry import parse_options

Flavour = Literal["mlperf", "you2017", "nvidia", "fujitsu", "optax", "apex", "ascend"]
Denominator = Literal["sum_of_norms", "norm_of_sum"]
DenominatorDecay = Literal["decay", "decay_times_peak"]
Placement = Literal["inside", "outside", "inside_corrected"]
ZeroNorm = Literal["either", "weight", "undecayed", "none"]


@dataclasses.dataclass(frozen=True)
class LarsSettings:
    """Settings that differ between the variants of LARS; `lars` has the formulas."""

    denominator: Denominator = "sum_of_norms"
    """‖g‖ + wd·‖w‖, or ‖g + wd·w‖."""
    denominator_decay: DenominatorDecay = "decay"
    """wd in the sum of norms: the decay of the step, or the coefficient times the peak rate."""
    epsilon: float = 0.0
    """Added to the denominator."""
    trust_coefficient: float = 0.001
    """e in the formula of the trust ratio."""
    rate: Placement = "inside"
    """Whether velocities contain the learning rate; `inside_corrected`: with corrected momentum."""
    zero_norm: ZeroNorm = "either"
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


FLAVOURS: Mapping[Flavour, LarsSettings] = {
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
        raise ConfigError(f"optimizer.flavour: no {unknown!r}; {did_you_mean(unknown, fields)}")
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
