"""Options of the global batch and of gradient communication."""

import dataclasses
from typing import Literal

from largebatch.config.registries import SCHEMES, WIRE_FORMATS
from largebatch.config.values import option
from largebatch.registry import check


@dataclasses.dataclass(frozen=True)
class Batch:
    """The global batch in workers, and the microbatch of a device."""

    workers: int = option(
        8,
        "virtual workers in a step (W), one GPU of the published run each",
        within="above 0",
    )
    images_per_worker: int = option(32, "images of each worker (n)", within="above 0")
    stages: tuple[str, ...] = option(
        (),
        "changes during the training, such as '30 epochs: batch.images_per_worker=32 "
        "data.image_size=224 rate=1.7': the start, new values of batch and data options, and a "
        "factor of the learning rate",
    )
    microbatch: int | Literal["auto"] = option(
        "auto",
        "workers that a device computes at a time (m); auto: as many as fit the memory, at most "
        "320 images of 224×224 on GPUs and 64 of 64×64 on CPUs",
        within="above 0",
        mathematics=False,
    )
    deadline_s: float = option(
        0.0,
        "seconds after the start of a step, after which a process skips the remaining "
        "microbatches but the last, at most half of them; gradients are averaged over the "
        "computed images; 0: no deadline",
        within="at least 0",
    )

    @property
    def images(self) -> int:
        """Global batch size: W × n."""
        return self.workers * self.images_per_worker


@dataclasses.dataclass(frozen=True)
class Comm:
    """Gradient communication between devices."""

    allreduce: str = option(
        "bucket",
        "all-reduce of gradients. bucket: one for each group of consecutive layers, during "
        "backward; leaf: one for each parameter, during backward; tree: one for all, after "
        "backward",
        mathematics=False,
    )
    bucket_mib: float | Literal["auto"] = option(
        "auto",
        "least size of a bucket in MiB; auto: the best by a model of network and backward, one "
        "parameter on CPUs, 4 MiB on one GPU, unknown hardware, or one slice of TPU v5e, v5p or "
        "v6e",
        within="above 0",
        mathematics=False,
    )
    wire: str = option(
        "float32",
        "number format of gradients on the wire: float32 (that of the gradients), bfloat16, "
        "float16",
    )
    xla_options: tuple[str, ...] = option(
        (),
        "XLA compiler options as name=value, beside the defaults; unsupported ones are ignored "
        "with a warning",
        mathematics=False,
    )

    def __post_init__(self) -> None:
        check(self.allreduce, SCHEMES, "comm.allreduce", own="")
        check(self.wire, WIRE_FORMATS, "comm.wire", own="")

    @property
    def wire_bytes(self) -> int:
        """Bytes of one gradient on the wire."""
        return WIRE_FORMATS[self.wire].itemsize
