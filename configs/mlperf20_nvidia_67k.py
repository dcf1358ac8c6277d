"""NVIDIA, MLPerf v2.0: batch 67,456 on 4,216 A100 in 19.2 s.

    python train.py --config=configs/mlperf20_nvidia_67k.py --config.data.data_dir=DATA

The MLPerf v2.0 closed-division submission of NVIDIA: LARS, statistics of 32 images, those of 2
workers; 76.16 % in 19.2 s (their logs), reached at epoch 86.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v2.0, NVIDIA",
    provenance="S",
    devices="4,216 A100",
    device_count=4216,
    cluster="dgx-a100",
    epochs=86.0,
    top1_percent=76.16,
    seconds=19.2,
    target_percent=75.9,
    mlperf="v2.0 closed",
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
    """4,216 workers of 16 images."""
    config = imagenet(workers=4216, images_per_worker=16, dtype="float16")
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
