"""NVIDIA, MLPerf v0.6: batch 33,280 on 512 V100 (32 DGX-2H) in 155.4 s.

    python train.py --config=configs/mlperf06_nvidia_33k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, statistics of its own images; 76.04 to
76.26 % in 155.4 s (their logs), reached at epoch 72. NVIDIA decays the bias of the head and
corrects momentum as the rate changes.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="512 V100 (32 DGX-2H)",
    device_count=512,
    cluster="dgx2h-v100",
    epochs=72.0,
    top1_percent=76.15,
    seconds=155.4,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span norm.momentum
        norm.epsilon data.crop_area optimizer.name optimizer.trust_coefficient optimizer.epsilon
        optimizer.weight_decay optimizer.momentum optimizer.trust_skip optimizer.decay_skip
        schedule.length schedule.peak schedule.warmup schedule.end schedule.decay schedule.power
        loss.label_smoothing model.dtype optimizer.flavour comm.wire
    """,
)


def get_config() -> ConfigDict:
    """512 workers of 65 images."""
    config = imagenet(workers=512, images_per_worker=65, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 2e-4
    polynomial(config, length="77 epochs", peak=31.2, warmup="25 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
