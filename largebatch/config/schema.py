"""Every option of a run, with its type, default and meaning.

An option is declared once, here. ``mathematics=False`` marks the options that change speed, memory
or reporting but not the numbers that training computes (up to the order of floating-point sums);
only those may differ between a checkpoint and the run that resumes it.
"""

import dataclasses
from typing import Any, Literal

Kind = Literal["conv", "fc", "bias", "bn"]
"""Kinds of parameter: convolution and head kernels, the head's bias, BatchNorm's scale and bias."""


Range = Literal["above 0", "at least 0", "at least 0 and below 1"]


def option(default: Any, doc: str, *, within: Range | None = None, mathematics: bool = True) -> Any:
    """A dataclass field that carries its documentation.

    Args:
      default: its value unless a recipe changes it.
      doc: what it means.
      within: what its number must be, whatever the other options are; words are not looked at.
      mathematics: whether it changes the numbers that training computes.
    """
    metadata = {"doc": doc, "within": within, "mathematics": mathematics}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Model:
    """ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution)."""

    name: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] = option(
        "resnet50", "depth and block type"
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
    zero_init_last_gamma: bool = option(
        False, "start each residual branch at zero (Goyal et al. 2017, section 5.1)"
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


@dataclasses.dataclass(frozen=True)
class Norm:
    """BatchNorm: whose images share statistics, and what evaluation uses."""

    span: int | Literal["all"] = option(
        1, "workers that share batch statistics: 1, a number, or all", within="above 0"
    )
    epsilon: float = option(1e-5, "added to the variance", within="above 0")
    momentum: float = option(
        0.9, "share of the running statistics kept at each update", within="at least 0 and below 1"
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
    statistics: Literal["ema", "precise"] = option(
        "ema",
        "evaluate with the moving average, or with statistics recomputed from training batches "
        "(Wu & Johnson 2021, section 3)",
        mathematics=False,
    )
    precise_batches: int = option(
        8,
        "global batches that precise statistics are recomputed from",
        within="above 0",
        mathematics=False,
    )


@dataclasses.dataclass(frozen=True)
class Batch:
    """The global batch as workers, and how many of them a device computes at a time."""

    workers: int = option(
        8, "workers of a step (W); the global batch is W × images_per_worker", within="above 0"
    )
    images_per_worker: int = option(32, "images of one worker (n)", within="above 0")
    microbatch: int | Literal["auto"] = option(
        "auto",
        "workers that one device computes at a time (m); auto: the most that fit its memory",
        within="above 0",
        mathematics=False,
    )
    memory_gib: float = option(
        0.0,
        "device memory that `auto` plans for; 0: what the device reports",
        within="at least 0",
        mathematics=False,
    )
    memory_margin: float = option(
        0.1,
        "share of that memory which `auto` leaves free",
        within="at least 0 and below 1",
        mathematics=False,
    )


@dataclasses.dataclass(frozen=True)
class Data:
    """Where examples come from, in which order, and how they are augmented."""

    source: str = option(
        "digits",
        "digits, synthetic, tfds:NAME, folder:PATH (class folders), arrayrecord:PATH, or "
        "decoded:PATH",
    )
    data_dir: str = option(
        "",
        "where TFDS keeps its prepared sets; empty: $TFDS_DATA_DIR or ~/tensorflow_datasets",
        mathematics=False,
    )
    image_size: int = option(
        0, "pixels a side; 0: the source's own, 224 for photographs", within="at least 0"
    )
    examples: int = option(
        0, "training examples of a synthetic source; 0: its default", within="at least 0"
    )
    classes: int = option(0, "classes of a synthetic source; 0: its default", within="at least 0")
    shuffle: bool = option(True, "a new permutation of the training set for every epoch")
    epoch_end: Literal["continue", "drop", "repeat"] = option(
        "continue",
        "where an epoch is no whole number of steps: continue with the next epoch in the same "
        "batch, drop the rest of the epoch, or repeat examples to fill the batch",
    )
    repeat: bool = option(
        False,
        "allow a global batch larger than the training set, which then repeats examples in it",
    )
    crop_area: tuple[float, ...] = option(
        (0.08, 1.0), "photographs: least and greatest share of the area that a training crop shows"
    )
    crop_ratio: tuple[float, ...] = option(
        (3 / 4, 4 / 3), "photographs: least and greatest width / height of a training crop"
    )
    evaluation_crop: float = option(
        0.875,
        "photographs: share of the shorter side that evaluation sees, in the middle",
        mathematics=False,
    )
    rectangular: bool = option(
        False,
        "photographs: evaluate at about each picture's own aspect (some seven shapes) instead of a "
        "square",
        mathematics=False,
    )
    resampling: Literal["linear", "antialias"] = option(
        "linear",
        "photographs: linear, as TensorFlow and MLPerf resize, or antialias, as Pillow and "
        "torchvision, in about twice the time for the whole of decoding",
    )
    crops: Literal["host", "device"] = option(
        "host",
        "who cuts the crops out of decoded:PATH; the device gives the same to one grey level",
    )
    shift: int = option(
        0, "augment by a random translation of up to this many pixels", within="at least 0"
    )
    flip: bool = option(False, "augment by a random horizontal flip")
    threads: int = option(
        0,
        "threads that read and augment; 0: one for each core",
        within="at least 0",
        mathematics=False,
    )
    processes: int = option(
        0,
        "worker processes that do so, each with that many threads; 0: this one does, which is as "
        "fast up to some 20,000 images/s",
        within="at least 0",
        mathematics=False,
    )
    memory_mib: int = option(
        512, "MiB of images prepared ahead in a process", within="above 0", mathematics=False
    )


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


@dataclasses.dataclass(frozen=True)
class Comm:
    """How gradients cross the network."""

    allreduce: Literal["bucket", "leaf", "tree"] = option(
        "bucket",
        "bucket: one psum for each static group of consecutive layers, issued inside backward; "
        "leaf: one for each parameter, inside backward; tree: one for all of them, after backward",
        mathematics=False,
    )
    bucket_mib: float | Literal["auto"] = option(
        "auto",
        "least size of a bucket on the wire, in MiB; auto: what a model of this network and of the "
        "backward pass finds best, a parameter each on CPUs, 4 on one GPU or unknown hardware",
        within="above 0",
        mathematics=False,
    )
    backward_profile: str = option(
        "",
        "auto only: file of measured seconds of the backward pass, written by "
        "scripts/benchmark.py allreduce --profile_out; empty: estimated",
        mathematics=False,
    )
    wire: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "number format of gradients on the wire"
    )
    xla_options: tuple[str, ...] = option(
        (),
        "options of the compiler as name=value, added to ours or in their place; one that it does "
        "not take is left out with a warning",
        mathematics=False,
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """Seed, intervals and what is kept."""

    seed: int = option(0, "seed of parameters, data order and augmentation", within="at least 0")
    log_every: str = option("10 steps", "interval of rows in metrics.jsonl", mathematics=False)
    layers_every: str = option(
        "100 steps", "interval of rows in layers.jsonl: trust ratio and norms", mathematics=False
    )
    evaluate_every: str = option("4 epochs", "interval of evaluations", mathematics=False)
    checkpoint_every: str = option("4 epochs", "interval of checkpoints", mathematics=False)
    keep_checkpoints: int = option(
        3, "newest checkpoints kept", within="above 0", mathematics=False
    )
    stop_after: str = option(
        "",
        "stop here, with a checkpoint, as if interrupted; empty: at the end of training",
        mathematics=False,
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """All sections."""

    model: Model = dataclasses.field(default_factory=Model)
    norm: Norm = dataclasses.field(default_factory=Norm)
    batch: Batch = dataclasses.field(default_factory=Batch)
    data: Data = dataclasses.field(default_factory=Data)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    loss: Loss = dataclasses.field(default_factory=Loss)
    comm: Comm = dataclasses.field(default_factory=Comm)
    run: Run = dataclasses.field(default_factory=Run)
