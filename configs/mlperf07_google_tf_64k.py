"""Google, MLPerf v0.7: batch 65,536 on 4,096 TPU v3 chips in 28.9 s.

    python train.py --config=configs/mlperf07_google_tf_64k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of Google: LARS, BatchNorm statistics over 64 images (8
workers); 76.06 % in 28.9 s (their logs). The TensorFlow twin of mlperf07_google_jax_64k; its decay
ends 1,133 steps after the warm-up.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, Google",
    provenance="S",
    devices="4,096 TPU v3 chips",
    device_count=8192,
    cluster="tpu-v3",
    epochs=88.0,
    top1_percent=76.06,
    seconds=28.9,
    target_percent=75.9,
    mlperf="v0.7 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
    D="schedule.decay_end",
)


def get_config() -> ConfigDict:
    """8,192 workers of 8 images."""
    config = families.mlperf(
        workers=8192,
        images_per_worker=8,
        span=8,
        dtype="bfloat16",
        flavour="mlperf",
        length="1738 steps",
        peak=24.699,
        warmup="31 epochs",
        momentum=0.951807,
        weight_decay=1e-4,
    )
    config.schedule.decay_end = "1739.03 steps"
    config.comm.wire = "float32"
    return config
