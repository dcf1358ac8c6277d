"""Google, MLPerf v0.7: batch 65,536 on 4,096 TPU v3 chips in 28.3 s.

    python train.py --config=configs/mlperf07_google_jax_64k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of Google: LARS, statistics of 64 images, those of 8
workers; 76.07 % in 28.3 s (their logs). The research submission in JAX: 8 images a core, the first
convolution on blocks of 2×2 pixels, plain momentum on biases and BatchNorm. Its decay ends 1,166.25
steps after the warm-up. It resampled bicubically; here linearly.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, Google",
    provenance="S",
    devices="4,096 TPU v3 chips",
    device_count=8192,
    cluster="tpu-v3",
    epochs=92.0,
    top1_percent=76.07,
    seconds=28.3,
    target_percent=75.9,
    mlperf="v0.7 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span norm.momentum
        norm.epsilon data.crop_area optimizer.name optimizer.trust_coefficient optimizer.epsilon
        optimizer.weight_decay optimizer.momentum optimizer.trust_skip optimizer.decay_skip
        schedule.length schedule.peak schedule.warmup schedule.end schedule.decay schedule.power
        loss.label_smoothing model.dtype model.stem norm.last_gamma schedule.decay_end
    """,
)


def get_config() -> ConfigDict:
    """8,192 workers of 8 images."""
    config = imagenet(workers=8192, images_per_worker=8, dtype="bfloat16")
    config.norm.span = 8
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9537213777059405
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="92 epochs", peak=23.080977304670448, warmup="33 epochs")
    config.schedule.decay_end = "92.6578 epochs"
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    config.model.stem = "space_to_depth"
    config.norm.last_gamma = 0.0
    config.run.evaluate_every = "4 epochs"
    return config
