"""NVIDIA, MLPerf v1.1: batch 64,800 on 4,320 A100 in 20.8 s.

    python train.py --config=configs/mlperf11_nvidia_65k.py --config.data.data_dir=DATA

The MLPerf v1.1 closed-division submission of NVIDIA: LARS, statistics of 30 images, those of 2
workers; 76.27 % in 20.8 s (their logs), reached at epoch 85.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v1.1, NVIDIA",
    provenance="S",
    devices="4,320 A100",
    device_count=4320,
    cluster="dgx-a100",
    epochs=85.0,
    top1_percent=76.27,
    seconds=20.8,
    target_percent=75.9,
    mlperf="v1.1 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span optimizer.name
        optimizer.trust_coefficient optimizer.epsilon optimizer.weight_decay optimizer.momentum
        optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak schedule.warmup
        schedule.end schedule.decay schedule.power loss.label_smoothing model.dtype
        optimizer.flavour comm.wire
    """,
    C="norm.momentum norm.epsilon data.crop_area",
)


def get_config() -> ConfigDict:
    """4,320 workers of 15 images."""
    config = imagenet(workers=4320, images_per_worker=15, dtype="float16")
    config.norm.span = 2
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.951807
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="90 epochs", peak=24.699, warmup="31 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
