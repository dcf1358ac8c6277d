"""NVIDIA, MLPerf v0.6: batch 54,080 on 1,040 V100 (130 DGX-1) in 101.5 s.

    python train.py --config=configs/mlperf06_nvidia_54k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, statistics of its own images; 75.94 to
76.28 % in 101.5 s (their logs), reached at epoch 82 to 86. NVIDIA decays the bias of the head and
corrects momentum as the rate changes.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="1,040 V100 (130 DGX-1)",
    device_count=1040,
    cluster="dgx1-v100",
    epochs=84.0,
    top1_percent=76.1,
    seconds=101.5,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span data.crop_area
        optimizer.name optimizer.trust_coefficient optimizer.epsilon optimizer.weight_decay
        optimizer.momentum optimizer.trust_skip optimizer.decay_skip schedule.length
        schedule.peak schedule.warmup schedule.end schedule.decay schedule.power
        loss.label_smoothing model.dtype optimizer.flavour comm.wire
    """,
    C="norm.momentum norm.epsilon",
)


def get_config() -> ConfigDict:
    """1,040 workers of 52 images."""
    config = imagenet(workers=1040, images_per_worker=52, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 2e-4
    polynomial(config, length="90 epochs", peak=38.0, warmup="25 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
