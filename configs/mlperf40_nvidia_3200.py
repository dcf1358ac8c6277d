"""NVIDIA, MLPerf v4.0: batch 3,200 on 8 H200 in 721.6 s.

    python train.py --config=configs/mlperf40_nvidia_3200.py --config.data.data_dir=DATA

The MLPerf v4.0 closed-division submission of NVIDIA: LARS, statistics of its own images; 76.1 % in
721.6 s (their logs), reached at epoch 35. One node; 789.8 s on 8 H100. On one GPU of 80 GB it is
the same run at an eighth of the speed.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v4.0, NVIDIA",
    provenance="S",
    devices="8 H200",
    device_count=8,
    cluster="h200-node",
    epochs=35.0,
    top1_percent=76.1,
    seconds=721.6,
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
    """8 workers of 400 images."""
    config = imagenet(workers=8, images_per_worker=400, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 5e-5
    polynomial(config, length="37 epochs", peak=11.0, warmup="2 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
