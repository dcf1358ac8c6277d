"""Google, MLPerf v0.6: batch 16,384 on 64 TPU v3 chips in 673 s.

    python train.py --config=configs/mlperf06_google_16k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of Google: LARS, statistics of its own images; 75.9 to
76.4 % in 673 s (their logs), reached at epoch 64. Google added an L2 term to the loss of the same
size, so kernels are decayed twice. How large that term was in this one was not read.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, Google",
    provenance="S",
    devices="64 TPU v3 chips",
    device_count=128,
    cluster="tpu-v3",
    epochs=64.0,
    top1_percent=76.1,
    seconds=673.0,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span data.crop_area
        optimizer.name optimizer.trust_coefficient optimizer.epsilon optimizer.weight_decay
        optimizer.momentum optimizer.trust_skip optimizer.decay_skip schedule.length
        schedule.peak schedule.warmup schedule.end schedule.decay schedule.power
        loss.label_smoothing model.dtype
    """,
    U="loss.l2 loss.l2_skip",
    C="norm.momentum norm.epsilon",
)


def get_config() -> ConfigDict:
    """128 workers of 128 images."""
    config = imagenet(workers=128, images_per_worker=128, dtype="bfloat16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 2e-4
    polynomial(config, length="72 epochs", peak=25.0, warmup="5 epochs")
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    config.loss.l2 = 2e-4
    config.loss.l2_skip = ("bn",)
    config.run.evaluate_every = "4 epochs"
    return config
