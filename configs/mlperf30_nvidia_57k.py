"""NVIDIA, MLPerf v3.0: batch 57,344 on 3,584 H100 in 10.98 s.

    python train.py --config=configs/mlperf30_nvidia_57k.py --config.data.data_dir=DATA

The MLPerf v3.0 closed-division submission of NVIDIA: LARS, statistics of 32 images, those of 2
workers; 76.18 % in 10.98 s (their logs), reached at epoch 77.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v3.0, NVIDIA",
    provenance="S",
    devices="3,584 H100",
    device_count=3584,
    cluster="dgx-h100",
    epochs=77.0,
    top1_percent=76.18,
    seconds=10.98,
    target_percent=75.9,
    mlperf="v3.0 closed",
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
    """3,584 workers of 16 images."""
    config = imagenet(workers=3584, images_per_worker=16, dtype="float16")
    config.norm.span = 2
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.95
    config.optimizer.weight_decay = 2.5e-5
    polynomial(config, length="78 epochs", peak=23.0, warmup="32 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
