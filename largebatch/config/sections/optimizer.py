"""Options of the update rule, its schedules and the loss."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import Kind, option


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update rule and which parameters get which part of it."""

    name: Literal["lars", "sgd"] = option("lars", "LARS (You et al. 2017, arXiv 1708.03888) or SGD")
    flavour: Literal["mlperf", "optax"] = option(
        "mlperf",
        "LARS only. Trust ratio, mlperf: e‖w‖ / (‖g‖ + wd‖w‖ + epsilon), optax: "
        "e‖w‖ / (‖g + wd·w‖ + epsilon)",
    )
    trust_coefficient: float = option(0.001, "LARS only: e above", within="at least 0")
    epsilon: float = option(
        0.0, "LARS only: added to the denominator of the trust ratio", within="at least 0"
    )
    momentum: float = option(0.9, "momentum", within="at least 0 and below 1")
    nesterov: bool = option(False, "Nesterov momentum")
    weight_decay: float = option(1e-4, "weight decay, added to the gradient", within="at least 0")
    trust_skip: tuple[Kind, ...] = option(
        ("bn", "bias"), "kinds of parameter (conv, fc, bias, bn) that use the plain learning rate"
    )
    decay_skip: tuple[Kind, ...] = option(("bn", "bias"), "kinds of parameter that are not decayed")
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


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the samples consumed.

    Durations are texts: '5 epochs', '540 steps', '1000000 samples' or '40 %' of the length.
    """

    length: str = option("90 epochs", "the whole training, rounded up to whole steps")
    peak: float = option(0.0, "peak learning rate; give this or per_256")
    per_256: float = option(
        0.0, "peak learning rate for a batch of 256, scaled to the global batch"
    )
    scaling: Literal["linear", "sqrt"] = option("linear", "how per_256 grows with the batch")
    warmup: str = option("5 epochs", "linear warm-up from warmup_start to the peak")
    warmup_start: float = option(0.0, "learning rate at the first sample")
    decay: Literal["polynomial", "linear", "cosine", "step", "constant"] = option(
        "polynomial", "shape from the end of the warm-up on"
    )
    power: float = option(2.0, "power of the polynomial")
    end: float = option(0.0, "learning rate where the decay ends, and beyond")
    decay_end: str = option("100 %", "where the decay ends")
    steps: tuple[str, ...] = option((), "decay step: where the rate drops, as durations")
    factor: float = option(0.1, "decay step: what it is multiplied by there")


@dataclasses.dataclass(frozen=True)
class Loss:
    """Softmax cross-entropy."""

    label_smoothing: float = option(
        0.1, "share of the target spread evenly over all classes", within="at least 0 and below 1"
    )
    scale: float | Literal["auto"] = option(
        "auto",
        "factor of the loss in backward, taken out of the gradients again after the all-reduce, "
        "against underflow; auto: 1, and with float16 the largest power of two in the global batch",
        within="above 0",
    )
