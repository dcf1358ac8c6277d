"""The batch ratio of the 74.7 s record on ten classes of ImageNet: 6.4 % of the dataset a step.

    python train.py --config=configs/imagenette_record_ratio.py --config.data.source=folder:PATH

A step has 608 of 9,469 training images, as the record's has 81,920 of 1,281,167: 16 steps an epoch,
90 epochs, 1,440 steps. Optimizer, schedule, loss and batch statistics are those of
fujitsu2019_81920, except the peak learning rate and the weight decay, which were chosen by short
trainings on nine tenths of the training images
(records/2026-11-23_learning_rates_imagenette_cpu.md), a decay of power 2, and a last learning rate
in the ratio of the peak. Network, images and augmentation are those of imagenette_laptop, whose
docstring says where the images are; as in the record, the last 5 epochs have no augmentation.
They are shuffled, unlike the record's: class folders are in the order of their classes.
Expected: 81.7 % (three seeds: 81.2 to 82.2) in 14 minutes on two CPU cores, 30 on one
(records/2026-11-24_imagenette_record_ratio_cpu/README.md), 1.0 point below imagenette_laptop.
Not a published run. What warm-up, label smoothing and the statistics of each worker are worth, in
eight trials of 20 epochs:

    python scripts/sweep.py --sweep configs/imagenette_record_ratio.py \
        --config.data.source=folder:PATH --config.run.scale_length=0.2222

They reach 70.1 to 72.3 %, about as different as seeds (docs/studies.md).
"""

from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.config.recipe_file import execute
from largebatch.config.recipes import families
from largebatch.tools.sweep.space import Values


def get_config() -> ConfigDict:
    """16 workers of 38 images for 90 epochs of 16 steps."""
    config, _ = execute(Path(__file__).with_name("imagenette_laptop.py"))
    families.set_fujitsu_training(config, steps_per_epoch=16)
    config.batch.workers = 16
    config.batch.images_per_worker = 38
    config.optimizer.weight_decay = 2e-3
    config.schedule.peak = 2.0
    config.schedule.power = 2.0
    config.schedule.end = 0.005  # 0.25 % of the peak, as in the record
    return config


def sweep(config: Config) -> Values:
    """With and without warm-up and label smoothing; statistics of each worker and of the batch."""
    return {
        "schedule.warmup": (config.schedule.warmup, "0 epochs"),
        "loss.label_smoothing": (0.1, 0.0),
        "norm.span": (1, "all"),
    }
