"""CIFAR-10 on a laptop: ResNet-10 for 15 epochs.

    python train.py --config=configs/cifar10_laptop.py --config.data.source=folder:PATH

PATH holds train/ and test/ with class folders of 32×32 images, 50,000 and 10,000: the unpacked
cifar10.tgz of fast.ai (course.fast.ai/datasets), or the original files (cs.toronto.edu/~kriz)
written as images.
Expected: 84.3 % in 42 minutes on one CPU core (one seed,
records/2026-11-24_cifar10_laptop_cpu/README.md), about half of it on two.
Not a published run: SGD at a small batch, beside cifar10_record_ratio at a large one.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """A batch of 128 as 4 workers of 32 images with common batch statistics."""
    config = default_config()
    config.model.name = "resnet10"
    config.model.width = 16
    config.model.stem = "small"
    config.norm.span = "all"
    config.batch.workers = 4
    config.batch.images_per_worker = 32
    config.data.source = "folder:cifar10"
    config.data.image_size = 32
    config.data.train_crop = "centre"
    config.data.evaluation_crop = 1.0
    config.data.shift = 4
    config.data.flip = True
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 5e-4
    config.schedule.length = "15 epochs"
    config.schedule.warmup = "1 epochs"
    config.schedule.decay = "cosine"
    config.schedule.peak = 0.2
    config.run.log_every = "1 epochs"
    config.run.evaluate_every = "5 epochs"
    config.run.checkpoint_every = "5 epochs"
    return config
