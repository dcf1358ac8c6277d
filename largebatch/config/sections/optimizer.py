"""Options of the update rule, its schedules and the loss."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import Kind, option
from largebatch.config.optimizers import OPTIMIZERS


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update rule and which parameters get which part of it.

    What is `auto` is as the flavour of LARS has it, or the rule.
    """

    name: str = option(
        "lars",
        "lars (You et al. 2017, arXiv 1708.03888); sgd; lamb (You et al. 2020, arXiv 1904.00962); "
        "rmsprop_sgd, which turns into SGD (Akiba et al. 2017, arXiv 1711.04325); any optimizer of "
        "optax, such as optax:adamw; or your own package.module:factory (docs/own_optimizer.md)",
    )
    options: str = option(
        "",
        "optax:NAME and package.module:factory only: arguments of the factory as Python literals, "
        "such as 'b1=0.9 b2=0.95'",
    )
    flavour: Literal["mlperf", "you2017", "nvidia", "fujitsu", "optax", "apex", "ascend"] = option(
        "mlperf",
        "LARS only. Trust ratio e‖w‖ / (‖g‖ + wd‖w‖ + epsilon) in the form of MLPerf's reference, "
        "the paper, NVIDIA, Fujitsu, optax (e‖w‖ / (‖g + wd·w‖ + epsilon)), apex or Ascend; what "
        "each has of its own can be chosen below",
    )
    denominator: Literal["auto", "sum_of_norms", "norm_of_sum"] = option(
        "auto", "LARS only: ‖g‖ + wd‖w‖ or ‖g + wd·w‖; auto: the second for optax"
    )
    denominator_decay: Literal["auto", "decay", "decay_times_peak"] = option(
        "auto",
        "LARS only: the wd of the sum of norms, weight_decay of the step or weight_decay times the "
        "peak learning rate; auto: the second for fujitsu",
    )
    trust_coefficient: float | Literal["auto"] = option(
        "auto",
        "LARS only: e above; auto: 0.001, but 0.0025 for fujitsu and 0.02 for apex",
        within="at least 0",
    )
    epsilon: float | Literal["auto"] = option(
        "auto",
        "LARS: added to the denominator of the trust ratio; auto: 0, but 1e-9 for fujitsu, 1e-8 "
        "for apex and 1e-5 for ascend. LAMB, RMSprop: added to the root of the mean square; auto: "
        "1e-6 and 1e-8",
        within="at least 0",
    )
    rate: Literal["auto", "inside", "outside", "inside_corrected"] = option(
        "auto",
        "LARS and SGD: whether velocities hold learning rates; inside_corrected: with momentum "
        "multiplied by the ratio of this step's rate to the last one's (Goyal et al. 2017, arXiv "
        "1706.02677); auto: outside for SGD, apex and ascend, inside_corrected for nvidia, else "
        "inside",
    )
    zero_norm: Literal["auto", "either", "weight", "undecayed", "none"] = option(
        "auto",
        "LARS only: the trust ratio is 1 where the norm of either weight or gradient is 0; where "
        "the weight's is; where either is, and nothing is decayed there; or nowhere, so that a "
        "zero weight stays. auto: either, but weight for fujitsu, undecayed for apex, none for "
        "you2017 and ascend",
    )
    trust_clip: tuple[float, ...] = option((), "LARS only: least and most trust ratio; empty: any")
    rate_clip: bool | Literal["auto"] = option(
        "auto",
        "LARS only: the ratio is the smaller of trust ratio / learning rate and 1, so that a "
        "layer's rate is at most the learning rate; auto: true for apex",
    )
    momentum: float = option(
        0.9,
        "momentum; of LAMB, the share of the mean gradient kept",
        within="at least 0 and below 1",
    )
    momentum_at_peak: float = option(
        0.0,
        "momentum goes there as the learning rate goes to its peak, and back; 0: it is constant",
        within="at least 0 and below 1",
    )
    second_momentum: float | Literal["auto"] = option(
        "auto",
        "LAMB and RMSprop: share of the mean squared gradient kept; auto: 0.999 and 0.99",
        within="at least 0 and below 1",
    )
    rmsprop_rate: float = option(
        3e-4, "rmsprop_sgd only: learning rate of RMSprop", within="above 0"
    )
    nesterov: bool = option(False, "Nesterov momentum; not LAMB")
    weight_decay: float = option(
        1e-4, "weight decay, added to the gradient unless decoupled", within="at least 0"
    )
    decay: Literal["coupled", "decoupled"] = option(
        "coupled",
        "decoupled, SGD only: a step takes weight_decay times learning rate / peak off the weights "
        "themselves (Loshchilov & Hutter 2019, arXiv 1711.05101)",
    )
    trust_skip: tuple[Kind, ...] | Literal["auto"] = option(
        "auto",
        "LARS and LAMB: kinds of parameter (conv, fc, bias, bn) that use the plain learning rate; "
        "auto: bn, bias, but none for optax and apex",
    )
    decay_skip: tuple[Kind, ...] | Literal["auto"] = option(
        "auto",
        "kinds of parameter that are not decayed; auto: bn, bias, but bn for nvidia and none for "
        "optax and apex",
    )
    layout: Literal["auto", "leaf", "rows"] = option(
        "auto",
        "how norms are computed: leaf, a reduction for each parameter; rows, few reductions over "
        "the rows of many; auto: rows on GPUs, leaf elsewhere",
        mathematics=False,
    )
    update: Literal["replicated", "sharded"] = option(
        "replicated",
        "replicated: every device updates all parameters; sharded: its part of each, with "
        "velocities that only it holds (Xu et al. 2020, arXiv 2004.13336)",
        mathematics=False,
    )

    def __post_init__(self) -> None:
        OPTIMIZERS.check(self.name)

    @property
    def title(self) -> str:
        """The rule, for people."""
        if self.name not in OPTIMIZERS:
            return ", ".join(filter(None, (self.name, " ".join(self.options.split()))))
        title = OPTIMIZERS[self.name].title.format_map(vars(self))
        return title + (", Nesterov" if self.nesterov else "")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate, and what goes with it, as functions of the samples consumed.

    Durations are texts: '5 epochs', '540 steps', '1000000 samples' or '40 %' of the length.
    """

    length: str = option("90 epochs", "the whole training, rounded up to whole steps")
    peak: float = option(0.0, "peak learning rate; give this or per_256")
    per_256: float = option(
        0.0, "peak learning rate for a batch of 256, scaled to the global batch"
    )
    scaling: Literal["linear", "sqrt"] = option("linear", "how per_256 grows with the batch")
    warmup: str = option("5 epochs", "warm-up from warmup_start to the peak")
    warmup_start: float = option(0.0, "learning rate at the first sample")
    warmup_shape: Literal["linear", "power", "cosine"] = option(
        "linear", "share^1, share^warmup_power or (1 − cos(π·share)) / 2 of the way to the peak"
    )
    warmup_power: float = option(2.0, "power of the warm-up")
    decay: Literal[
        "polynomial", "linear", "cosine", "step", "pieces", "lines", "arctangent", "constant"
    ] = option("polynomial", "shape from the end of the warm-up on")
    power: float = option(2.0, "power of the polynomial")
    end: float = option(0.0, "learning rate where the decay ends, and beyond")
    decay_end: str = option("100 %", "where the decay ends")
    steps: tuple[str, ...] = option((), "decay step: where the rate drops, as durations")
    factor: float = option(0.1, "decay step: what it is multiplied by there")
    points: tuple[str, ...] = option(
        (),
        "decays pieces and lines: points such as '16 epochs: 0.5', where and what multiple of the "
        "peak; held until the next, or joined by straight lines",
    )
    turn: str = option("", "decay arctangent: where it has come down half the way")
    width: str = option(
        "", "decay arctangent: from turn back to where a quarter of the way is left behind"
    )
    rescale: bool = option(
        False,
        "decay arctangent: stretched after turn so as to come to end; otherwise end is a floor",
    )
    weight_decay: Literal["constant", "follow"] = option(
        "constant",
        "follow: weight decay has a rate of its own, the peak times its own warm-up times the "
        "learning rate's decay (Fujitsu, MLPerf v0.6); the warm-ups being equal, that is constant",
    )
    weight_decay_warmup: str = option(
        "", "weight_decay follow: length of its linear warm-up; empty: warmup"
    )
    blend_centre: str = option("10 epochs", "rmsprop_sgd: where the share of SGD is a half")
    blend_period: str = option("5 epochs", "rmsprop_sgd: half of it later SGD is alone")


@dataclasses.dataclass(frozen=True)
class Loss:
    """Softmax cross-entropy."""

    label_smoothing: float = option(
        0.1, "share of the target spread evenly over all classes", within="at least 0 and below 1"
    )
    l2: float = option(
        0.0,
        "λ of an L2 term λ/2·‖w‖² of the loss; in gradients and their norms, not in the loss shown",
        within="at least 0",
    )
    l2_skip: tuple[Kind, ...] = option(("bn",), "kinds of parameter left out of that term")
    scale: float | Literal["auto"] = option(
        "auto",
        "factor of the loss in backward, taken out of the gradients again after the all-reduce, "
        "against underflow; auto: 1, and with float16 the largest power of two in the global batch",
        within="above 0",
    )
