"""Options of the data."""

import dataclasses
from typing import Literal

from largebatch.config.declaration import option


@dataclasses.dataclass(frozen=True)
class Data:
    """Where examples come from, in which order, and how they are augmented."""

    source: str = option(
        "digits",
        "digits, synthetic, tfds:NAME, folder:PATH (class folders), arrayrecord:PATH, "
        "decoded:PATH, or your own package.module:factory:ARGUMENT (docs/data.md)",
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
    train_crop: Literal["random", "centre"] = option(
        "random",
        "photographs: what training sees, a random crop or what evaluation would see",
    )
    evaluation_size: int = option(
        0,
        "pixels a side that evaluation sees; 0: as training",
        within="at least 0",
        mathematics=False,
    )
    evaluation_flip: bool = option(
        False,
        "evaluate the mean of the logits of each image and of its mirror image",
        mathematics=False,
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
    max_unreadable: float = option(
        0.001,
        "photographs: share of a split's examples that may be undecodable (unless it is 0, at "
        "least 3 examples, or a tenth of a split of fewer than 30); up to that a training example "
        "is replaced by the next readable one, a validation example is seen as grey, and each is "
        "named; a process that meets more stops the run",
        within="at least 0 and below 1",
        mathematics=False,
    )
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
