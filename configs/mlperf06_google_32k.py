"""Google, MLPerf v0.6: batch 32,768 on 1,024 TPU v3 chips in 76.95 s.

    python train.py --config=configs/mlperf06_google_32k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of Google: LARS, statistics of 128 images, those of 8
workers; 75.97 to 76.28 % in 76.95 s (their logs), reached at epoch 72. Google added an L2 term to
the loss of the same size, so kernels are decayed twice.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, Google",
    provenance="S",
    devices="1,024 TPU v3 chips",
    device_count=2048,
    cluster="tpu-v3",
    epochs=72.0,
    top1_percent=76.1,
    seconds=76.95,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span norm.momentum
        norm.epsilon data.crop_area optimizer.name optimizer.trust_coefficient optimizer.epsilon
        optimizer.weight_decay optimizer.momentum optimizer.trust_skip optimizer.decay_skip
        schedule.length schedule.peak schedule.warmup schedule.end schedule.decay schedule.power
        loss.label_smoothing model.dtype loss.l2 loss.l2_skip
    """,
)


def get_config() -> ConfigDict:
    """2,048 workers of 16 images."""
    config = imagenet(workers=2048, images_per_worker=16, dtype="bfloat16")
    config.norm.span = 8
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="76 epochs", peak=31.2, warmup="25 epochs")
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    config.optimizer.epsilon = 1e-5
    config.loss.l2 = 1e-4
    config.loss.l2_skip = ("bn",)
    config.run.evaluate_every = "4 epochs"
    return config
