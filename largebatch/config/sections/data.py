"""Options of the dataset, data order and augmentation."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Data:
    """Dataset, order of the examples, and augmentation."""

    source: str = option(
        "digits",
        "digits, synthetic, tfds:NAME, folder:PATH (class folders), arrayrecord:PATH, "
        "tfrecord:PATH, webdataset:PATTERN, huggingface:PATH, or your own "
        "package.module:factory:ARGUMENT (docs/data.md)",
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
        "images of object storage kept on the local disk, in $XDG_CACHE_HOME/largebatch/records "
        "(~/.cache/largebatch/records), in GB; 0: none",
        within="at least 0",
        mathematics=False,
        per_host="value",
    )
    image_size: int = option(
        0,
        "side of a training image in pixels; 0: the default of the source, 224 for photographs",
        within="at least 0",
    )
    validation_split: float = option(
        0.0,
        "folder:PATH without a validation folder: share of each class that is the validation split "
        "and not trained on, chosen by the names of the files; 0: none",
        within="at least 0 and below 1",
    )
    validation_sets: tuple[str, ...] = option(
        (),
        "further validation sets, each NAME=SOURCE with a source as in `source`: evaluated beside "
        "the main one, with columns NAME/top1; its accuracy alone decides about the best "
        "checkpoint and run.target; their classes must be the same",
        mathematics=False,
        per_host="path",
    )
    examples: int = option(
        0,
        "number of training examples: of a synthetic source, or of an accepted part of a public "
        "dataset; 0: default",
        within="at least 0",
    )
    classes: int = option(
        0,
        "number of classes: of a synthetic source, or of a source without class names; 0: "
        "default, or the number of names",
        within="at least 0",
    )
    shuffle: bool = option(
        True,
        "use a new permutation of the training set in every epoch; otherwise the order of the "
        "dataset",
    )
    epoch_end: Literal["continue", "drop", "repeat"] = option(
        "continue",
        "if an epoch is not a whole number of steps: continue with the next epoch in the same "
        "batch, drop the rest of the epoch, or repeat examples to fill the batch; a global batch "
        "larger than the training set repeats examples",
    )
    crop_area: tuple[float, ...] = option(
        (0.08, 1.0), "photographs: least and greatest area of a training crop, as a share"
    )
    crop_ratio: tuple[float, ...] = option(
        (3 / 4, 4 / 3), "photographs: least and greatest width / height of a training crop"
    )
    train_crop: Literal["random", "centre"] = option(
        "random",
        "photographs: training uses a random crop, or the centre crop of evaluation",
    )
    evaluation_size: int = option(
        0,
        "side of an evaluation image in pixels; 0: image_size",
        within="at least 0",
        mathematics=False,
    )
    evaluation_flip: bool = option(
        False,
        "average the logits of each evaluation image and its mirror image",
        mathematics=False,
    )
    evaluation_crop: float = option(
        0.875,
        "photographs: side of the centre crop of evaluation, as a share of the shorter side",
        mathematics=False,
    )
    rectangular: bool = option(
        False,
        "photographs: evaluate near the aspect ratio of each image (about seven shapes) instead of "
        "a square",
        mathematics=False,
    )
    resampling: Literal["linear", "antialias"] = option(
        "linear",
        "photographs: resize with linear (TensorFlow, MLPerf) or antialias (Pillow, torchvision) "
        "interpolation; antialias about doubles the decoding time",
    )
    shift: int = option(
        0, "augmentation: greatest random translation in pixels", within="at least 0"
    )
    flip: bool = option(False, "augmentation: random horizontal flip")
    max_unreadable: float = option(
        0.001,
        "photographs: greatest share of corrupt images in a split (unless it is 0, at least 3 "
        "images, or a tenth of a split of fewer than 30); the next valid image replaces a corrupt "
        "training image, a grey image replaces a corrupt validation image, and each is reported; "
        "a process with more corrupt images stops the run",
        within="at least 0 and below 1",
        mathematics=False,
    )
    threads: int = option(
        0,
        "threads that read and augment images; 0: one thread per core",
        within="at least 0",
        mathematics=False,
        per_host="value",
    )
