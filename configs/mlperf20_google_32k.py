"""Google, MLPerf v2.0: batch 32,768 on 4,096 TPU v4 chips in 11.4 s.

    python train.py --config=configs/mlperf20_google_32k.py --config.data.data_dir=DATA

The MLPerf v2.0 closed-division submission of Google: LARS, statistics of 64 images, those of 8
workers; 76.01 % in 11.4 s (their logs). Its decay ends 1,731 steps after the warm-up.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v2.0, Google",
    provenance="S",
    devices="4,096 TPU v4 chips",
    device_count=4096,
    cluster="tpu-v4",
    epochs=60.0,
    top1_percent=76.01,
    seconds=11.4,
    target_percent=75.9,
    mlperf="v2.0 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span optimizer.name
        optimizer.trust_coefficient optimizer.epsilon optimizer.weight_decay optimizer.momentum
        optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak schedule.warmup
        schedule.end schedule.decay schedule.power loss.label_smoothing model.dtype model.stem
        comm.wire schedule.decay_end
    """,
    C="norm.momentum norm.epsilon data.crop_area",
)


def get_config() -> ConfigDict:
    """4,096 workers of 8 images."""
    config = imagenet(workers=4096, images_per_worker=8, dtype="bfloat16")
    config.norm.span = 8
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9321
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="2355 steps", peak=27.5, warmup="16 epochs")
    config.schedule.decay_end = "60.2742 epochs"
    config.loss.label_smoothing = 0.1
    config.model.stem = "space_to_depth"
    config.run.evaluate_every = "4 epochs"
    return config
