"""CIFAR-10 with 6.4 % of the dataset in each step, the batch ratio of the 74.7 s record.

    python train.py --config=configs/cifar10_record_ratio.py --config.data.source=folder:PATH

80 workers of 40 images, as many as a worker of the record has, are 3,200 of 50,000: 16 steps an
epoch. Optimizer, schedule, loss and batch statistics are those of imagenette_record_ratio at a
sixth of its 90 epochs; nothing was tuned. Network, images and augmentation are those of
cifar10_laptop, whose docstring says where the images are; as in the record, the last 5 of 90 parts
of the training have no augmentation. They are shuffled, unlike the record's: class folders are in
the order of their classes.
Expected: 68.2 % in 47 minutes on one CPU core (one seed,
records/2026-11-24_cifar10_record_ratio_cpu/README.md), 16 points below cifar10_laptop, which makes
5,860 updates in the same epochs instead of 240.
Not a published run.
"""

from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config.recipe_file import execute
from largebatch.config.recipes import families


def get_config() -> ConfigDict:
    """80 workers of 40 images for 15 epochs of 16 steps."""
    config, _ = execute(Path(__file__).with_name("cifar10_laptop.py"))
    families.set_fujitsu_training(config, steps_per_epoch=16, epochs=15)
    config.batch.workers = 80
    config.batch.images_per_worker = 40
    config.batch.stages = tuple(f"{stage} data.shift=0" for stage in config.batch.stages)
    config.optimizer.weight_decay = 2e-3
    config.schedule.peak = 2.0
    config.schedule.power = 2.0
    config.schedule.end = 0.005  # 0.25 % of the peak, as in the record
    config.run.layers_every = "1 epochs"
    return config
