"""Ying et al. 2018: batch 32,768 on 1,024 TPU v3 chips in 2.2 minutes.

    python train.py --config=configs/ying2018_32k.py --config.data.data_dir=DATA

Image Classification at Supercomputer Scale (arXiv 1811.06992): distributed BatchNorm over groups of
replicas, two-dimensional gradient summation, input pipelines cached and sharded. 76.3 % in 2.2
minutes (abstract). A worker is a core of 16 images; the size of the groups is that of Google's
MLPerf v0.6 run, 8 cores; learning rate and warm-up are from memory and agree with that run.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1811.06992",
    provenance="A+M",
    devices="1,024 TPU v3 chips",
    device_count=2048,
    cluster="tpu-v3",
    epochs=90,
    top1_percent=76.3,
    seconds=132.0,
    software="v0.5",
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name
        optimizer.trust_coefficient optimizer.epsilon optimizer.momentum optimizer.trust_skip
        optimizer.decay_skip schedule.length schedule.decay schedule.power model.dtype
    """,
    M="schedule.peak schedule.warmup optimizer.weight_decay loss.label_smoothing",
    C="norm.span schedule.end",
    U="data.flip",
)


def get_config() -> ConfigDict:
    """2,048 cores of 16 images, statistics over 8 of them."""
    config = imagenet(workers=2048, images_per_worker=16, dtype="bfloat16")
    config.norm.span = 8
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="90 epochs", peak=31.2, warmup="25 epochs")
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    return config
