"""Mikami et al. 2018: batch 34,816, then 69,632, on 2,176 V100 in 224 s.

    python train.py --config=configs/mikami2018_34k_68k.py --config.data.data_dir=DATA

Massively Distributed SGD (arXiv 1811.05233, first version; Neural Network Libraries on ABCI, 2-D
torus all-reduce): the batch grows from 16 to 32 images a GPU at epoch 30, after a warm-up of five
epochs; 75.03 % in 224 s (abstract). Coefficient 0.01, epsilon 1e-6, momentum, the rates 29 and 50
and their decay (1 − e/90)² are from memory and unverified. The warm-up ends where that decay is at
epoch 5.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1811.05233v1",
    provenance="A+M",
    devices="2,176 V100 (ABCI)",
    device_count=2176,
    cluster="abci",
    epochs=90,
    top1_percent=75.03,
    seconds=224.0,
    software="v0.5",
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name schedule.length
        schedule.warmup norm.span model.dtype
    """,
    M="""
        optimizer.trust_coefficient optimizer.epsilon optimizer.momentum optimizer.weight_decay
        optimizer.trust_skip optimizer.decay_skip batch.stages schedule.peak schedule.decay
        schedule.power loss.label_smoothing
    """,
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """2,176 workers of 16 images, of 32 from epoch 30."""
    config = imagenet(workers=2176, images_per_worker=16, dtype="float16")
    # 29 (1 − e/90)² before epoch 30, 50 (1 − e/90)² after it.
    config.batch.stages = ("30 epochs: batch.images_per_worker=32 rate=1.724138",)
    config.optimizer.trust_coefficient = 0.01
    config.optimizer.epsilon = 1e-6
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 5e-5
    polynomial(config, length="90 epochs", peak=29.0 * (85 / 90) ** 2, warmup="5 epochs", end=0.0)
    config.loss.label_smoothing = 0.0
    return config
