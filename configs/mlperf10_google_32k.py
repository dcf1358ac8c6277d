"""Google, MLPerf v1.0: batch 32,768 on 2,048 TPU v4 chips in 17.1 s.

    python train.py --config=configs/mlperf10_google_32k.py --config.data.data_dir=DATA

The MLPerf v1.0 closed-division submission of Google: LARS, statistics of 64 images, those of 4
workers; 75.94 % in 17.1 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v1.0, Google",
    provenance="S",
    devices="2,048 TPU v4 chips",
    device_count=2048,
    cluster="tpu-v4",
    epochs=60.0,
    top1_percent=75.94,
    seconds=17.1,
    target_percent=75.9,
    mlperf="v1.0 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span optimizer.name
        optimizer.trust_coefficient optimizer.epsilon optimizer.weight_decay optimizer.momentum
        optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak schedule.warmup
        schedule.end schedule.decay schedule.power loss.label_smoothing model.dtype model.stem
        comm.wire
    """,
    C="norm.momentum norm.epsilon data.crop_area",
)


def get_config() -> ConfigDict:
    """2,048 workers of 16 images."""
    config = imagenet(workers=2048, images_per_worker=16, dtype="bfloat16")
    config.norm.span = 4
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.929
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="2355 steps", peak=29.0, warmup="18 epochs")
    config.loss.label_smoothing = 0.1
    config.model.stem = "space_to_depth"
    config.run.evaluate_every = "4 epochs"
    return config
