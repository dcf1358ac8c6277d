"""NVIDIA, MLPerf v4.0: batch 40,448 on 2,528 H100 in 13.7 s.

    python train.py --config=configs/mlperf40_nvidia_40k.py --config.data.data_dir=DATA

The MLPerf v4.0 closed-division submission of NVIDIA: LARS, statistics of 32 images, those of 2
workers; 76.18 % in 13.7 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v4.0, NVIDIA",
    provenance="S",
    devices="2,528 H100",
    device_count=2528,
    cluster="dgx-h100",
    epochs=70.0,
    top1_percent=76.18,
    seconds=13.7,
    target_percent=75.9,
    mlperf="v4.0 closed",
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
    """2,528 workers of 16 images."""
    config = imagenet(workers=2528, images_per_worker=16, dtype="float16")
    config.norm.span = 2
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.95
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="70 epochs", peak=19.4, warmup="24 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
