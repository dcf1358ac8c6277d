"""Options of the global batch and of the network that its gradients cross."""

import dataclasses
from typing import Literal

from largebatch.config.communication import SCHEMES, WIRE_FORMATS
from largebatch.config.declaration import option
from largebatch.config.synonyms import NUMBER_FORMATS
from largebatch.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Batch:
    """The global batch as workers, and how many of them a device computes at a time."""

    workers: int = option(
        8, "workers of a step (W); the global batch is W × images_per_worker", within="above 0"
    )
    images_per_worker: int = option(32, "images of one worker (n)", within="above 0")
    stages: tuple[str, ...] = option(
        (),
        "what changes during the training, each as '30 epochs: batch.images_per_worker=32 "
        "data.image_size=224 rate=1.7': from when on, and options of batch and data, or a factor "
        "of the learning rate",
    )
    microbatch: int | Literal["auto"] = option(
        "auto",
        "workers that one device computes at a time (m); auto: the most that fit its memory",
        within="above 0",
        mathematics=False,
    )
    deadline_s: float = option(
        0.0,
        "seconds from the begin of a step after which a process computes no more microbatches of "
        "it but the last; gradients are then the mean over what was computed; 0: none",
        within="at least 0",
    )
    deadline_share: float = option(
        0.5,
        "with deadline_s: most of a step's microbatches that a process may leave out",
        within="at least 0 and below 1",
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

    @property
    def images(self) -> int:
        """The global batch: W × n."""
        return self.workers * self.images_per_worker


@dataclasses.dataclass(frozen=True)
class Comm:
    """How gradients cross the network."""

    allreduce: str = option(
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
    wire: str = option(
        "float32",
        "number format of gradients on the wire: float32 (their own), bfloat16, float16",
    )
    xla_options: tuple[str, ...] = option(
        (),
        "options of the compiler as name=value, added to ours or in their place; one that it does "
        "not take is left out with a warning",
        mathematics=False,
    )

    def __post_init__(self) -> None:
        SCHEMES.check(self.allreduce)
        if self.wire not in WIRE_FORMATS and (meant := NUMBER_FORMATS.get(self.wire.lower())):
            raise ConfigError(f"comm.wire={self.wire!r}: did you mean {meant!r}?")
        WIRE_FORMATS.check(self.wire)

    @property
    def wire_bytes(self) -> int:
        """Bytes of one gradient on the wire."""
        return WIRE_FORMATS[self.wire].itemsize
