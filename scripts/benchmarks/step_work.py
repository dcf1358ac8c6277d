"""What a competitor in the training step is given: the network, the batch and its numbers."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from benchmarks.workload import Task
from largebatch.data import Source, SourceOptions, open_source

BATCHES = 4  # distinct ones, so that no cache holds what a step reads
RATE = 0.01
SMOOTHING = 0.1
MOMENTUM = 0.9
DECAY = 1e-4


@dataclasses.dataclass(frozen=True)
class StepWork(Task):
    """Training steps on images that are already on the device.

    Attributes:
        batch: Images of a step; of one of its microbatches, where ours has several.
        image_size: Pixels a side.
        classes: Of the head.
        dtype: Arithmetic of the convolutions, `float32`, `bfloat16` or `float16`.
        network: A key of `largebatch.models.DEPTHS`.
        width: Channels of the first stage.
        seconds: Length of a repeat; whole steps, one at least.
        workers: Of ours, in a microbatch; each has statistics of its own.
        microbatches: Of ours, in a step.
        overrides: Further options of ours, as `section.key=value`.
        flax_examples: Folder of Flax's examples, for that peer.
        trace: Folder for a profile of some steps; empty makes none.
    """

    batch: int = 32
    image_size: int = 224
    classes: int = 1000
    dtype: str = "float32"
    network: str = "resnet50"
    width: int = 64
    seconds: float = 1.0
    workers: int = 1
    microbatches: int = 1
    overrides: tuple[str, ...] = ()
    flax_examples: str = ""
    trace: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """The competitors share the device's memory."""
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def source(work: StepWork) -> Source:
    """Learnable synthetic images."""
    options = SourceOptions(
        image_size=work.image_size, classes=work.classes, examples=BATCHES * work.batch
    )
    return open_source("synthetic", "train", options)


def batches(work: StepWork) -> list[tuple[np.ndarray, np.ndarray]]:
    """BATCHES batches: uint8 (batch, side, side, 3) and labels int32 (batch,)."""
    read = source(work).read
    return [read(np.arange(work.batch) + i * work.batch) for i in range(BATCHES)]


def normalised(work: StepWork) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same with the images as float32 of mean 0 and deviation 1, as pipelines deliver them."""
    of = source(work)
    mean, std = (np.asarray(x, np.float32) for x in (of.mean, of.std))
    return [((images - mean) / std, labels) for images, labels in batches(work)]
