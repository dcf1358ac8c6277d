"""Options of the network and BatchNorm."""

import dataclasses
from typing import Literal

from largebatch.config.registries import DEPTHS, MODELS
from largebatch.config.values import option

RESNET_OPTIONS = (
    *(f"model.{name}" for name in ("width", "stem", "blur_pool", "init", "head_deviation")),
    *("model.remat", "norm.epsilon", "norm.gamma", "norm.last_gamma"),
)
"""Options that apply only to the built-in ResNets."""


@dataclasses.dataclass(frozen=True)
class Model:
    """ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution) or your own."""

    name: str = option(
        "resnet50",
        f"{', '.join(MODELS)}; or package.module:factory of your own Flax "
        "NNX module (docs/own_model.md), which ignores the options from width to head_deviation "
        "and remat",
    )
    width: int = option(
        64, "channels of the first stage; each later stage doubles them", within="above 0"
    )
    stem: Literal["conv7", "small"] = option(
        "conv7",
        "conv7: 7×7 convolution of stride 2 and max-pool; small: 3×3 convolution without pool "
        "(images below 64)",
    )
    blur_pool: bool = option(
        False,
        "blur before each convolution of stride 2 with at least 16 channels (Zhang 2019, arXiv "
        "1904.11486)",
    )
    init: Literal["fan_out", "fan_in"] = option(
        "fan_out", "He-normal initial values of convolutions by fan-out (torchvision) or fan-in"
    )
    head_deviation: float | Literal["auto"] = option(
        "auto",
        "standard deviation of the head's initial kernel, with a bias of 0; auto: kernel and bias "
        "uniform in ±1/√fan-in (torchvision)",
        within="at least 0",
    )
    init_from: str = option(
        "",
        "initial weights: a run, a checkpoint, or a file of this program or a PyTorch library; a "
        "head for different classes starts random",
        per_host="value",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "number format of convolutions; parameters, statistics and loss are float32"
    )
    remat: Literal["none", "norms", "blocks"] = option(
        "none",
        "activations that backward recomputes to save memory; norms: normalized activations "
        "inside a block; blocks: whole blocks",
        mathematics=False,
    )

    @property
    def title(self) -> str:
        """Display name of the network."""
        return f"{self.name}, width {self.width}" if self.name in DEPTHS else self.name


@dataclasses.dataclass(frozen=True)
class Norm:
    """BatchNorm: statistics of training and evaluation."""

    span: int | Literal["all"] = option(
        1, "number of workers that share batch statistics, or all", within="above 0"
    )
    epsilon: float = option(1e-5, "epsilon added to the variance", within="above 0")
    gamma: float = option(1.0, "initial scale", within="at least 0")
    last_gamma: float | Literal["auto"] = option(
        "auto",
        "initial scale of the last BatchNorm of each residual branch; 0: the branch starts at "
        "zero (Goyal et al. 2017); auto: gamma",
        within="at least 0",
    )
    momentum: float = option(
        0.9,
        "share of the running statistics that an update keeps; update t keeps at most (t - 1) / "
        "(t + 40), so that the initial 0 and 1 have no effect",
        within="at least 0 and below 1",
    )
    running_variance: Literal["unbiased", "biased"] = option(
        "unbiased",
        "variance in the running statistics: unbiased, with the factor N/(N-1) (PyTorch), or "
        "biased (TensorFlow, Flax)",
    )
    statistics: Literal["auto", "ema", "last", "precise"] = option(
        "auto",
        "statistics of evaluations and checkpoints. ema: moving average over all workers; last: "
        "those of the last step (Akiba et al. 2017); precise: recomputed from training batches "
        "before each evaluation (Wu & Johnson 2021); auto: precise in runs of fewer than 500 "
        "steps, otherwise ema",
        mathematics=False,
    )
    precise_batches: int = option(
        8,
        "number of newest global batches for precise statistics",
        within="above 0",
        mathematics=False,
    )
