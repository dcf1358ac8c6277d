"""Mikami et al. 2019: batch 55,296 on 3,456 V100 in 122 s.

    python train.py --config=configs/mikami2019_54k.py --config.data.data_dir=DATA

Massively Distributed SGD (arXiv 1811.05233, second version; Neural Network Libraries on ABCI, 2-D
torus all-reduce): label smoothing; 122 s is in the abstract; batch, devices, 75.29 % and a momentum
coupled to the batch, which is constant here, are from memory. Learning rate and warm-up were not
found in any source and are chosen here.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1811.05233v2",
    provenance="A+M",
    devices="3,456 V100 (ABCI)",
    device_count=3456,
    cluster="abci",
    epochs=90,
    top1_percent=75.29,
    seconds=122.0,
    software="v0.6",
)

SOURCES = sources(
    A="data.image_size optimizer.name norm.span model.dtype",
    M="""
        batch.workers batch.images_per_worker loss.label_smoothing optimizer.trust_coefficient
        optimizer.epsilon optimizer.weight_decay optimizer.trust_skip optimizer.decay_skip
        schedule.length schedule.decay schedule.power
    """,
    U="optimizer.momentum schedule.peak schedule.warmup data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """3,456 workers of 16 images for 90 epochs."""
    config = imagenet(workers=3456, images_per_worker=16, dtype="float16")
    config.optimizer.trust_coefficient = 0.01
    config.optimizer.epsilon = 1e-6
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 5e-5
    polynomial(config, length="90 epochs", peak=40.0, warmup="25 epochs", end=0.0)
    config.loss.label_smoothing = 0.1
    return config
