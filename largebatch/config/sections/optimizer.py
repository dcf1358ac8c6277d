"""Options of the optimizer, its schedules and the loss."""

import dataclasses
from typing import Literal

from largebatch.config.registries import OPTIMIZERS
from largebatch.config.values import Kind, option
from largebatch.registry import check


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Optimizer, and the parameters that trust ratio and weight decay apply to.

    The meaning of `auto` depends on the optimizer and on the flavour of LARS.
    """

    name: str = option(
        "lars",
        "lars (You et al. 2017, arXiv 1708.03888); sgd; lamb (You et al. 2020, arXiv 1904.00962); "
        "rmsprop_sgd (Akiba et al. 2017, arXiv 1711.04325); optax:NAME; or your own "
        "package.module:factory (docs/own_optimizer.md)",
    )
    options: str = option(
        "",
        "arguments of optax:NAME or your own factory, such as 'b1=0.9 b2=0.95'",
    )
    flavour: str = option(
        "mlperf",
        "LARS: form of the trust ratio e‖w‖ / (‖g‖ + wd‖w‖ + epsilon): mlperf (MLPerf's "
        "reference), you2017 (the paper), nvidia, fujitsu, optax (e‖w‖ / (‖g + wd·w‖ + epsilon)), "
        "apex or ascend; your own details follow, such as 'apex rate_clip=False' "
        "(docs/own_optimizer.md)",
    )
    trust_coefficient: float | Literal["auto"] = option(
        "auto",
        "LARS: e in the trust ratio; auto: 0.001, but 0.0025 for fujitsu and 0.02 for apex",
        within="at least 0",
    )
    epsilon: float | Literal["auto"] = option(
        "auto",
        "LARS: in the denominator of the trust ratio; auto: 0, but 1e-9 for fujitsu, 1e-8 for "
        "apex, 1e-5 for ascend. LAMB and RMSprop: added to the root of the mean square; auto: "
        "1e-6 and 1e-8",
        within="at least 0",
    )
    rate: Literal["auto", "inside", "outside", "inside_corrected"] = option(
        "auto",
        "LARS and SGD: whether the momentum buffer contains the learning rate; inside_corrected: "
        "yes, with momentum times the ratio of this step's learning rate to that before (Goyal et "
        "al. 2017, arXiv 1706.02677); auto: outside for SGD, apex and ascend, inside_corrected "
        "for nvidia, otherwise inside",
    )
    momentum: float = option(
        0.9,
        "momentum; for LAMB, decay rate of the mean gradient",
        within="at least 0 and below 1",
    )
    momentum_at_peak: float = option(
        0.0,
        "momentum at the peak learning rate, to which momentum changes in proportion to the "
        "learning rate; 0: constant momentum",
        within="at least 0 and below 1",
    )
    second_momentum: float | Literal["auto"] = option(
        "auto",
        "LAMB and RMSprop: decay rate of the mean squared gradient; auto: 0.999 and 0.99",
        within="at least 0 and below 1",
    )
    rmsprop_rate: float = option(
        3e-4, "rmsprop_sgd only: learning rate of RMSprop", within="above 0"
    )
    nesterov: bool = option(False, "use Nesterov momentum; not for LAMB")
    weight_decay: float = option(1e-4, "weight decay, added to the gradient", within="at least 0")
    clip_norm: float = option(
        0.0,
        "greatest norm of the gradient of the global batch, before weight decay, trust ratios and "
        "momentum; the logged norm is that before clipping; 0: no clipping",
        within="at least 0",
    )
    trust_skip: tuple[Kind, ...] | Literal["auto"] = option(
        "auto",
        "LARS and LAMB: kinds of parameter (conv, fc, bias, bn) without a trust ratio; auto: bn, "
        "bias; optax and apex: none",
    )
    decay_skip: tuple[Kind, ...] | Literal["auto"] = option(
        "auto",
        "kinds of parameter without weight decay; auto: bn, bias; nvidia: bn; optax and apex: none",
    )
    lr_mults: tuple[str, ...] = option(
        (),
        "learning rate multipliers 'PATTERN: FACTOR' by the name of a parameter, first match "
        "decides; 0 freezes: '(?!head/).*: 0.1' (docs/fine_tune.md)",
    )
    update: Literal["replicated", "sharded"] = option(
        "replicated",
        "replicated: each device updates all parameters; sharded: each device updates a part of "
        "each parameter and holds its part of the momentum (Xu et al. 2020, arXiv 2004.13336)",
        mathematics=False,
    )

    def __post_init__(self) -> None:
        own = "package.module:function, or an optax optimizer as optax:adamw"
        check(self.name, OPTIMIZERS, "optimizer.name", own=own)

    @property
    def title(self) -> str:
        """Display name of the optimizer."""
        if self.name not in OPTIMIZERS:
            return ", ".join(filter(None, (self.name, " ".join(self.options.split()))))
        title = OPTIMIZERS[self.name].title.format_map(vars(self))
        return title + (", Nesterov" if self.nesterov else "")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Schedules of learning rate and weight decay by sample position, and the average of weights.

    Durations are texts: '5 epochs', '540 steps', '1000000 samples' or '40 %' of the length.
    """

    length: str = option("90 epochs", "duration of the training, rounded up to whole steps")
    peak: float = option(0.0, "peak learning rate; set either this or per_256")
    per_256: float = option(
        0.0, "peak learning rate for a batch of 256; scales linearly with the batch"
    )
    warmup: str = option("5 epochs", "duration of the warm-up from warmup_start to the peak")
    warmup_start: float = option(0.0, "learning rate at the first sample")
    warmup_shape: Literal["linear", "quadratic", "cosine"] = option(
        "linear", "shape of the warm-up at share s of its duration: s, s² or (1 − cos(π·s)) / 2"
    )
    decay: Literal["polynomial", "linear", "cosine", "pieces", "lines", "constant"] = option(
        "polynomial", "shape of the decay after the warm-up"
    )
    power: float = option(2.0, "exponent of decay=polynomial")
    end: float = option(0.0, "learning rate at and after decay_end")
    decay_end: str = option("100 %", "end of the decay")
    points: tuple[str, ...] = option(
        (),
        "decay=pieces and decay=lines: '16 epochs: 0.5', a duration and a multiple of the peak; "
        "pieces: constant until the next point; lines: linear interpolation",
    )
    weight_decay: Literal["constant", "follow"] = option(
        "constant",
        "follow: weight decay is the peak times a linear warm-up from 0 times the decay of the "
        "learning rate (Fujitsu, MLPerf v0.6)",
    )
    ema: str = option(
        "",
        "horizon H of a moving average of weights and BatchNorm statistics: a step of B samples "
        "keeps exp(-B/H) of it, update t at most (t - 1) / (t + 40); it is evaluated beside the "
        "weights and stored in checkpoints; timm's decay d is '1/(1-d) steps', torchvision's "
        "'EPOCHS/(1-d) samples'; empty: none",
    )


@dataclasses.dataclass(frozen=True)
class Loss:
    """Cross-entropy of the classes, and the L2 term."""

    kind: Literal["softmax", "sigmoid"] = option(
        "softmax",
        "softmax: cross-entropy over the classes; sigmoid: mean binary cross-entropy of the "
        "classes (Wightman et al. 2021, arXiv 2110.00476; --bce-loss of timm)",
    )
    target_threshold: float = option(
        0.0,
        "sigmoid: a target above this value becomes 1, any other 0 (--bce-target-thresh of timm); "
        "0: targets remain shares",
        within="at least 0 and below 1",
    )
    label_smoothing: float = option(
        0.1, "share of the target spread evenly over all classes", within="at least 0 and below 1"
    )
    l2: float = option(
        0.0,
        "λ of an L2 term λ/2·‖w‖² in the loss; gradients include it, the logged loss does not",
        within="at least 0",
    )
    l2_skip: tuple[Kind, ...] = option(("bn",), "kinds of parameter without the L2 term")
    scale: float | Literal["auto"] = option(
        "auto",
        "loss scale against underflow; auto: 1, or with float16 the largest power of two up to "
        "the global batch, times the classes for kind=sigmoid",
        within="above 0",
    )
