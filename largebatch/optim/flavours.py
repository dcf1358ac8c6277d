"""Whose LARS: the published variants as settings of one rule.

flavour   source                                         what is its own
mlperf    TensorFlow 1 contrib.opt LARSOptimizer, the    You et al. 2017; ratio 1 at a zero norm
          MLPerf reference
you2017   You et al. 2017 (arXiv 1708.03888), alg. 1     no rule for zero norms: a zero weight
                                                         has ratio 0 and stays
nvidia    SGDwFASTLARS of NVIDIA's MXNet submissions     momentum corrected for the change of
          to MLPerf v0.6 and later                       the learning rate; decays the bias
fujitsu   multi_mp_sgd_two_stage_lars_mom_update of      n0·L in the denominator, epsilon 1e-9,
          Fujitsu's submission to MLPerf v0.6            only a zero weight gives ratio 1
optax     optax.lars                                     the norm of the sum; skips nothing
apex      NVIDIA apex LARC                               rate outside and clipped, e = 0.02; at a
                                                         zero norm no decay; skips nothing
ascend    LARSV2 of Huawei's TensorFlow, in SIAT's       rate outside, epsilon 1e-5; a zero
          submission to MLPerf v0.7                      weight stays
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from largebatch.errors import ConfigError, did_you_mean

Flavour = Literal["mlperf", "you2017", "nvidia", "fujitsu", "optax", "apex", "ascend"]
Denominator = Literal["sum_of_norms", "norm_of_sum"]
DenominatorDecay = Literal["decay", "decay_times_peak"]
Placement = Literal["inside", "outside", "inside_corrected"]
ZeroNorm = Literal["either", "weight", "undecayed", "none"]


@dataclasses.dataclass(frozen=True)
class LarsSettings:
    """What the variants of LARS differ in; the formulas are in `lars`."""

    denominator: Denominator = "sum_of_norms"
    """‖g‖ + wd·‖w‖, or ‖g + wd·w‖."""
    denominator_decay: DenominatorDecay = "decay"
    """The wd of the sum of norms: that of the step, or the coefficient times the peak rate."""
    epsilon: float = 0.0
    """Added to the denominator."""
    trust_coefficient: float = 0.001
    """e."""
    rate: Placement = "inside"
    """Whether velocities hold learning rates, and whether momentum is then corrected for that."""
    zero_norm: ZeroNorm = "either"
    """Where the ratio is 1: if the weight's or the gradient's norm is 0; if the weight's is; as
    `either`, and without decay; or nowhere, so that the ratio of a zero weight is 0."""
    rate_clip: bool = False
    """The ratio becomes the smaller of ratio / n and 1: a layer's rate is at most n."""
    trust_clip: tuple[float, ...] = ()
    """(least, most) ratio; empty: any."""
    trust_skip: tuple[str, ...] = ("bn", "bias")
    """Kinds of parameter without a ratio."""
    decay_skip: tuple[str, ...] = ("bn", "bias")
    """Kinds of parameter that are not decayed."""

    def __post_init__(self) -> None:
        if self.denominator == "norm_of_sum" and self.denominator_decay != "decay":
            raise ConfigError(
                "optimizer.denominator_decay=decay_times_peak does not fit "
                "optimizer.denominator=norm_of_sum, which holds the decay of the step; use "
                "sum_of_norms or denominator_decay=decay"
            )
        clip = self.trust_clip
        if clip and not (len(clip) == 2 and 0 <= clip[0] <= clip[1]):
            raise ConfigError(
                f"optimizer.trust_clip={clip} must be the least and the most ratio, such as "
                "(1e-5, 1), or empty"
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
    """The settings of a flavour, with others in place of some.

    Args:
        flavour: One of `FLAVOURS`.
        chosen: Settings by name; None or 'auto' as the flavour has it.

    Raises:
        ConfigError: An unknown flavour, or settings that contradict each other.
    """
    if flavour not in FLAVOURS:
        raise ConfigError(
            f"optimizer.flavour={flavour!r} is unknown; {did_you_mean(flavour, FLAVOURS)}"
        )
    given = {name: value for name, value in chosen.items() if value not in (None, "auto")}
    return dataclasses.replace(FLAVOURS[flavour], **given)


def lars_of(options: Any) -> LarsSettings:
    """Return the settings that the section ``optimizer`` chooses.

    Args:
        options: Has ``flavour`` and, under the same name, every setting; 'auto' as the flavour
            has it.

    Raises:
        ConfigError: Settings that contradict each other.
    """
    names = [field.name for field in dataclasses.fields(LarsSettings)]
    return lars_settings(options.flavour, **{name: getattr(options, name) for name in names})
