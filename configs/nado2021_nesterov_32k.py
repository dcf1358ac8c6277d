"""Nado et al. 2021: Nesterov momentum at batch 32,768 within the MLPerf step budget.

    python train.py --config=configs/nado2021_nesterov_32k.py --config.data.data_dir=DATA

A Large Batch Optimizer Reality Check (arXiv 2102.06356): tuned Nesterov momentum matches LARS.
Every tuned value is from memory of one table and unverified, since the paper's repository has none.
BatchNorm statistics are over groups of 64 images.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="arXiv 2102.06356; google/init2winit",
    provenance="M",
    devices="TPU",
    epochs=64.0,
    top1_percent=75.9,
    target_percent=75.9,
)

SOURCES = sources(
    S="batch.images_per_worker norm.epsilon",
    A="batch.workers data.image_size optimizer.name optimizer.nesterov",
    M="""
        optimizer.momentum optimizer.weight_decay optimizer.decay_skip schedule.length
        schedule.peak schedule.warmup schedule.warmup_shape schedule.decay
        schedule.power schedule.end schedule.decay_end loss.label_smoothing norm.momentum
        norm.last_gamma model.dtype
    """,
    U="data.flip",
)


def get_config() -> ConfigDict:
    """512 groups of 64 images for 64 epochs."""
    config = imagenet(workers=512, images_per_worker=64, dtype="bfloat16")
    config.norm.momentum = 0.94
    config.norm.last_gamma = 0.413
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.97603
    config.optimizer.weight_decay = 5.8e-5
    config.schedule.length = "2512 steps"
    config.schedule.peak = 7.05
    config.schedule.warmup = "638 steps"
    config.schedule.warmup_shape = "quadratic"
    config.schedule.decay = "polynomial"
    config.schedule.power = 2.0
    config.schedule.end = 6e-6
    config.schedule.decay_end = "2497 steps"
    config.loss.label_smoothing = 0.15
    config.comm.wire = "float32"
    config.run.evaluate_every = "4 epochs"
    return config
