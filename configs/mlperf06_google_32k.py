"""Google, MLPerf v0.6: batch 32,768 on 1,024 TPU v3 chips in 76.95 s.

    python train.py --config=configs/mlperf06_google_32k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of Google: LARS, BatchNorm statistics over 128 images (8
workers); 75.97 to 76.28 % in 76.95 s (their logs), reached at epoch 72. Google added an L2 term to
the loss, so kernels decay twice. Its command trains for 2,983 steps, 19 intervals of 157; the
program rounds the warm-up down to 977 steps, which moves the decay by half a step.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

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
    S=f"{families.MLPERF} {families.STATISTICS} data.crop_area loss.l2 loss.l2_skip",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """2,048 workers of 16 images."""
    config = families.mlperf(
        workers=2048,
        images_per_worker=16,
        span=8,
        dtype="bfloat16",
        flavour="mlperf",
        length="76 epochs",
        peak=31.2,
        warmup="25 epochs",
        momentum=0.9,
        weight_decay=1e-4,
    )
    config.schedule.length = "2983 steps"
    config.comm.wire = "float32"
    config.optimizer.epsilon = 1e-5
    config.loss.l2 = 1e-4
    config.loss.l2_skip = ("bn",)
    return config
