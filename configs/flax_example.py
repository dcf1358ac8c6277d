"""Flax ImageNet example: batch 1,024 on a TPU v3-8, 76.4 % in 100 epochs.

    python train.py --config=configs/flax_example.py --config.data.data_dir=DATA

SGD with Nesterov momentum, cosine, L2 in the loss on kernels, the last scale of each branch at 0:
76.37 % in 4.4 h on 4 TPU v3 chips. The size of the L2 term is from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="google/flax, examples/imagenet",
    provenance="S",
    devices="TPU v3-8 (4 chips)",
    device_count=8,
    cluster="tpu-v3",
    epochs=100.0,
    top1_percent=76.37,
    seconds=15840.0,
    software="v0.7",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.nesterov
        optimizer.momentum schedule.length schedule.per_256 schedule.warmup schedule.decay
        loss.label_smoothing norm.momentum norm.span norm.last_gamma model.dtype
        optimizer.weight_decay loss.l2_skip
    """,
    M="loss.l2",
    U="data.flip",
)


def get_config() -> ConfigDict:
    """8 workers of 128 images for 100 epochs."""
    config = imagenet(workers=8, images_per_worker=128, dtype="bfloat16")
    config.norm.last_gamma = 0.0
    config.norm.momentum = 0.9
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 0.0
    config.loss.l2 = 1e-4
    config.loss.l2_skip = ("bn", "bias")
    config.loss.label_smoothing = 0.0
    config.schedule.length = "100 epochs"
    config.schedule.per_256 = 0.1
    config.schedule.warmup = "5 epochs"
    config.schedule.decay = "cosine"
    config.comm.wire = "float32"
    config.run.evaluate_every = "1 epochs"
    return config
