"""Jia et al. 2018: batch 65,536 on 2,048 P40 in 6.6 minutes.

    python train.py --config=configs/jia2018_64k.py --config.data.data_dir=DATA

Highly Scalable Deep Learning Training System (arXiv 1807.11205): forward and backward in float16,
LARS in float32, no decay of biases and BatchNorm (71.9 → 75.8 %), 75.8 % in 6.6 minutes. Learning
rate and warm-up were not found in any source; those of mlperf06_nvidia_60k, which smooths labels,
are used. Coefficient, momentum and decay are from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1807.11205",
    provenance="A+M",
    devices="2,048 P40",
    device_count=2048,
    epochs=90,
    top1_percent=75.8,
    seconds=396.0,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name
        optimizer.decay_skip schedule.length loss.label_smoothing norm.span model.dtype
    """,
    M="""
        optimizer.trust_coefficient optimizer.momentum optimizer.weight_decay schedule.decay
        schedule.power
    """,
    C="schedule.peak schedule.warmup",
    U="optimizer.trust_skip data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """2,048 workers of 32 images for 90 epochs."""
    config = imagenet(workers=2048, images_per_worker=32, dtype="float16")
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 5e-5
    config.optimizer.trust_coefficient = 0.001
    polynomial(config, length="90 epochs", peak=40.7, warmup="33 epochs", end=0.0)
    config.loss.label_smoothing = 0.0
    return config
