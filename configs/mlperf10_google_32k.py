"""Google, MLPerf v1.0: batch 32,768 on 2,048 TPU v4 chips in 17.1 s.

    python train.py --config=configs/mlperf10_google_32k.py --config.data.data_dir=DATA

The MLPerf v1.0 closed-division submission of Google: LARS, BatchNorm statistics over 64 images (4
workers); 75.94 % in 17.1 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

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
    S=f"{families.MLPERF} comm.wire",
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip",
)


def get_config() -> ConfigDict:
    """2,048 workers of 16 images."""
    config = families.mlperf(
        workers=2048,
        images_per_worker=16,
        span=4,
        dtype="bfloat16",
        flavour="mlperf",
        length="2355 steps",
        peak=29.0,
        warmup="18 epochs",
        momentum=0.929,
        weight_decay=1e-4,
    )
    return config
