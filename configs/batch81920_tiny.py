"""The record's global batch, 81,920 images as 2,048 workers × 40, on any machine.

    python train.py --config=configs/batch81920_tiny.py

A rehearsal of the geometry, not of the accuracy: 8×8 synthetic images and a thin ResNet-18. The
whole batch passes through the memory of one microbatch (32 workers, 1,280 images); each worker has
its own BatchNorm statistics, and all 2,048 gradients are averaged before one LARS update.
Expected: 4 steps and an evaluation in about a minute on two CPU cores, with less than 1 GiB
(records/2026-11-21_batch81920_tiny_cpu.json).
Not a published run.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """2,048 workers of 40 images, 32 workers at a time on a device."""
    config = default_config()
    config.model.name = "resnet18"
    config.model.width = 8
    config.model.stem = "small"
    config.batch.workers = 2048
    config.batch.images_per_worker = 40
    config.batch.microbatch = 32
    config.data.source = "synthetic"
    config.data.image_size = 8
    config.data.examples = 200_000
    config.optimizer.trust_coefficient = 0.01
    config.schedule.length = "4 steps"
    config.schedule.warmup = "1 steps"
    config.schedule.peak = 4.0
    config.run.log_every = "1 steps"
    config.run.evaluate_every = "100 %"
    config.run.checkpoint_every = "2 steps"
    return config
