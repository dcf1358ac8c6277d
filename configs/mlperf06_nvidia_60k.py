"""NVIDIA, MLPerf v0.6: batch 59,904 on 1,536 V100 (96 DGX-2H) in 79.9 s.

    python train.py --config=configs/mlperf06_nvidia_60k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, statistics of its own images; 75.99 to
76.02 % in 79.9 s (their logs). NVIDIA decays the bias of the head and corrects momentum as the rate
changes.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="1,536 V100 (96 DGX-2H)",
    device_count=1536,
    cluster="dgx2h-v100",
    epochs=90.0,
    top1_percent=76.0,
    seconds=79.9,
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
    """1,536 workers of 39 images."""
    config = imagenet(workers=1536, images_per_worker=39, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 2e-4
    polynomial(config, length="90 epochs", peak=40.7, warmup="33 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
