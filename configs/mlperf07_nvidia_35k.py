"""NVIDIA, MLPerf v0.7: batch 34,560 on 768 A100 in 63.5 s.

    python train.py --config=configs/mlperf07_nvidia_35k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of NVIDIA: LARS, statistics of its own images; 76.07 % in
63.5 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, NVIDIA",
    provenance="S",
    devices="768 A100",
    device_count=768,
    cluster="dgx-a100-40g",
    epochs=59.0,
    top1_percent=76.07,
    seconds=63.5,
    target_percent=75.9,
    mlperf="v0.7 closed",
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
    """768 workers of 45 images."""
    config = imagenet(workers=768, images_per_worker=45, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "nvidia"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.94
    config.optimizer.weight_decay = 2.5e-5
    polynomial(config, length="59 epochs", peak=21.6, warmup="17 epochs")
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
