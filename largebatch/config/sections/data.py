"""Options of the dataset, data order and augmentation."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Data:
    """Dataset, order of the examples, and augmentation."""

    source: str = option(
        "digits",
        "digits, synthetic, tfds:NAME, folder:PATH, arrayrecord:PATH, tfrecord:PATH, "
        "webdataset:PATTERN, huggingface:PATH, or your own package.module:factory:ARGUMENT "
        "(docs/data.md)",
        per_host="path",
    )
    data_dir: str = option(
        "",
        "directory of the prepared TFDS datasets; empty: $TFDS_DATA_DIR or ~/tensorflow_datasets",
        mathematics=False,
        per_host="value",
    )
    cache_gb: float = option(
        0.0,
        "GB of images of object storage kept in $XDG_CACHE_HOME/largebatch/records (~/.cache); 0: "
        "none",
        within="at least 0",
        mathematics=False,
        per_host="value",
    )
    image_size: int = option(
        0,
        "side of a training image in pixels; 0: that of the source, 224 for photographs",
        within="at least 0",
    )
    validation_split: float = option(
        0.0,
        "folder:PATH without a validation folder: share of each class that is held out, chosen by "
        "the names of the files; 0: none",
        within="at least 0 and below 1",
    )
    validation_sets: tuple[str, ...] = option(
        (),
        "further validation sets of the same classes, each NAME=SOURCE, with columns NAME/top1; "
        "the best checkpoint and run.target depend on the main set alone",
        mathematics=False,
        per_host="path",
    )
    examples: int = option(
        0,
        "number of training examples of a synthetic source, or of an accepted part of a public "
        "dataset; 0: default",
        within="at least 0",
    )
    classes: int = option(
        0,
        "number of classes of a synthetic source, or one without class names; 0: default",
        within="at least 0",
    )
    shuffle: bool = option(
        True,
        "a new permutation in every epoch; otherwise the order of the dataset",
    )
    epoch_end: Literal["continue", "drop", "repeat"] = option(
        "continue",
        "if an epoch is no whole number of steps: continue with the next epoch in the same batch, "
        "drop the rest, or repeat examples to fill the batch",
    )
    crop_area: tuple[float, ...] = option(
        (0.08, 1.0), "photographs: least and greatest area of a training crop, as a share"
    )
    crop_ratio: tuple[float, ...] = option(
        (3 / 4, 4 / 3), "photographs: least and greatest width / height of a training crop"
    )
    train_crop: Literal["random", "centre"] = option(
        "random",
        "photographs: random crop, or the centre crop of evaluation",
    )
    evaluation_size: int = option(
        0,
        "side of an evaluation image in pixels; 0: image_size",
        within="at least 0",
        mathematics=False,
    )
    evaluation_flip: bool = option(
        False,
        "average the logits of an image and its mirror image",
        mathematics=False,
    )
    evaluation_crop: float = option(
        0.875,
        "photographs: side of the centre crop, as a share of the shorter side",
        mathematics=False,
    )
    rectangular: bool = option(
        False,
        "photographs: evaluate near the aspect ratio of each image instead of a square",
        mathematics=False,
    )
    resampling: Literal["linear", "antialias"] = option(
        "linear",
        "photographs: linear (TensorFlow, MLPerf) or antialias (Pillow, torchvision), which about "
        "doubles the decoding time",
    )
    shift: int = option(
        0, "augmentation: greatest random translation in pixels", within="at least 0"
    )
    flip: bool = option(False, "augmentation: random horizontal flip")
    max_unreadable: float = option(
        0.001,
        "photographs: greatest share of corrupt images in a split (unless it is 0, at least 3 "
        "images, or a tenth of fewer than 30); each is replaced and reported; more stop the run",
        within="at least 0 and below 1",
        mathematics=False,
    )
    threads: int = option(
        0,
        "threads that read and augment images; 0: one thread per core, at most 16",
        within="at least 0",
        mathematics=False,
        per_host="value",
    )
