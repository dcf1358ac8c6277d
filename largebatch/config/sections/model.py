"""Options of the network and of BatchNorm."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import option
from largebatch.config.models import DEPTHS, MODELS

RESNET_OPTIONS = (
    *(f"model.{name}" for name in ("width", "stem", "blur_pool", "init", "head_deviation")),
    *("model.pointwise", "model.remat", "norm.epsilon", "norm.gamma", "norm.last_gamma"),
)
"""Options that a user's own module decides by itself."""


@dataclasses.dataclass(frozen=True)
class Model:
    """ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution) or your own."""

    name: str = option(
        "resnet50",
        f"{', '.join(MODELS)}; or package.module:factory of your own Flax "
        "NNX module (docs/own_model.md), to which the options from width to head_deviation, "
        "pointwise and remat do not apply",
    )
    width: int = option(
        64, "channels of the first stage; the later ones double it", within="above 0"
    )
    stem: Literal["conv7", "space_to_depth", "small"] = option(
        "conv7",
        "conv7: 7×7 stride 2 and max-pool; space_to_depth: the same function of the same "
        "parameters, computed as a 4×4 convolution on 2×2 blocks; small: 3×3 "
        "stride 1, no pool (images below 64)",
    )
    blur_pool: bool = option(
        False,
        "blur before every convolution of stride 2 and of 16 channels or more (Zhang 2019, arXiv "
        "1904.11486, as FFCV and Composer place it)",
    )
    init: Literal["fan_out", "fan_in"] = option(
        "fan_out", "He-normal convolutions by fan-out, as torchvision, or by fan-in"
    )
    head_deviation: float | Literal["auto"] = option(
        "auto",
        "normal initial values of the head's kernel, its bias 0; auto: uniform in ±1/√fan-in, the "
        "bias too, as torchvision",
        within="at least 0",
    )
    init_from: str = option(
        "",
        "begin with these weights instead of fresh ones: a run, a checkpoint, or a file as "
        "scripts/export.py writes or PyTorch users publish; a head of other classes stays fresh; "
        "empty: none",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "arithmetic of convolutions; parameters, statistics and loss stay float32"
    )
    pointwise: Literal["auto", "matmul", "convolution"] = option(
        "auto",
        "1×1 convolutions as matrix products or as convolutions; auto: products on CPUs",
        mathematics=False,
    )
    remat: Literal["none", "norms", "blocks"] = option(
        "none",
        "what backward computes again to save memory: nothing; the normalised activations inside a "
        "block; whole blocks",
        mathematics=False,
    )

    @property
    def title(self) -> str:
        """The network for people."""
        return f"{self.name}, width {self.width}" if self.name in DEPTHS else self.name


@dataclasses.dataclass(frozen=True)
class Norm:
    """BatchNorm: whose images share statistics, and what evaluation uses."""

    span: int | Literal["all"] = option(
        1, "workers that share batch statistics: 1, a number, or all", within="above 0"
    )
    epsilon: float = option(1e-5, "added to the variance", within="above 0")
    gamma: float = option(1.0, "initial scale", within="at least 0")
    last_gamma: float | Literal["auto"] = option(
        "auto",
        "initial scale of the last one of each residual branch, 0 starts it at zero (Goyal et al. "
        "2017, section 5.1); auto: as the others",
        within="at least 0",
    )
    momentum: float = option(
        0.9,
        "share of the running statistics kept at each update; less in the first updates, so that "
        "they hold nothing of the initial 0 and 1 and follow fast-moving weights: update t keeps "
        "at most (t - 1) / (t + 40)",
        within="at least 0 and below 1",
    )
    momentum_samples: int = option(
        0,
        "samples to which `momentum` refers: a step of B samples keeps momentum ** (B / this); "
        "0: it refers to one step, whatever its size",
        within="at least 0",
    )
    running_variance: Literal["unbiased", "biased"] = option(
        "unbiased",
        "variance that enters the running statistics: N/(N-1) corrected, as cuDNN and PyTorch, or "
        "not, as TensorFlow and Flax (normalisation itself always uses the biased one)",
    )
    statistics: Literal["auto", "ema", "last", "precise"] = option(
        "auto",
        "what evaluations and checkpoints use. ema: the moving average over all workers (averaging "
        "workers' own moving averages gives the same numbers); last: the statistics of the last "
        "step (Akiba et al. 2017); precise: recomputed from training batches at each evaluation "
        "(Wu & Johnson 2021, section 3); auto: precise in a run of fewer than 500 steps, where the "
        "average lags behind the weights, otherwise ema",
        mathematics=False,
    )
    precise_batches: int = option(
        8,
        "global batches, the newest that training consumed, that precise statistics are "
        "recomputed from",
        within="above 0",
        mathematics=False,
    )
