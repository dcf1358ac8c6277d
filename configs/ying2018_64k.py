"""Ying et al. 2018: batch 65,536 on 1,024 TPU v3 chips in 1.8 minutes.

    python train.py --config=configs/ying2018_64k.py --config.data.data_dir=DATA

Image Classification at Supercomputer Scale (arXiv 1811.06992): distributed BatchNorm over groups of
replicas, two-dimensional gradient summation, input pipelines cached and sharded. The row of batch
65,536, 1.8 minutes and 75.2 % is from memory. Rate, warm-up, momentum and decay are carried over
from Google's MLPerf v0.7 run at this batch.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1811.06992",
    provenance="M",
    devices="1,024 TPU v3 chips",
    device_count=2048,
    cluster="tpu-v3",
    epochs=90,
    top1_percent=75.2,
    seconds=108.0,
    software="v0.5",
)

SOURCES = sources(
    M="""
        batch.workers batch.images_per_worker optimizer.name schedule.length schedule.decay
        schedule.power model.dtype
    """,
    C="""
        optimizer.trust_coefficient optimizer.epsilon schedule.peak schedule.warmup schedule.end
        optimizer.momentum optimizer.weight_decay optimizer.trust_skip optimizer.decay_skip
        loss.label_smoothing norm.span
    """,
    U="data.image_size data.flip",
)


def get_config() -> ConfigDict:
    """2,048 cores of 32 images, statistics over 2 of them."""
    config = imagenet(workers=2048, images_per_worker=32, dtype="bfloat16")
    config.norm.span = 2
    config.optimizer.momentum = 0.951807
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="90 epochs", peak=24.699, warmup="31 epochs")
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    return config
