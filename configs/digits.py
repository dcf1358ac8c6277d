"""A first run: handwritten digits from scikit-learn, in about a minute.

    python train.py

Data: 1,797 grey images of 8×8 pixels in 10 classes, part of scikit-learn; 360 of them for
validation.
Expected: 99.9 % validation top-1 in 50 s on two CPU cores, compilation included (mean of five
seeds, records/2026-11-22_digits_cpu/README.md).
Not a published run.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """A batch of 128 as 8 workers of 16 images."""
    config = default_config()
    config.model.name = "resnet18"
    config.model.width = 16
    config.model.stem = "small"
    config.batch.workers = 8
    config.batch.images_per_worker = 16
    config.data.source = "digits"
    config.data.shift = 1
    config.optimizer.name = "lars"
    config.optimizer.trust_coefficient = 0.01
    config.optimizer.weight_decay = 5e-4
    config.schedule.length = "40 epochs"
    config.schedule.warmup = "5 epochs"
    config.schedule.peak = 2.0
    config.comm.bucket_mib = 0.5
    config.run.layers_every = "20 steps"
    config.run.checkpoint_every = "10 epochs"
    return config
