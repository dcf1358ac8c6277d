"""Google, MLPerf v1.0: batch 55,296 on 3,456 TPU v4 chips in 13.7 s.

    python train.py --config=configs/mlperf10_google_55k.py --config.data.data_dir=DATA

The MLPerf v1.0 closed-division submission of Google: LARS, BatchNorm statistics over 64 images (4
workers); 75.96 % in 13.7 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v1.0, Google",
    provenance="S",
    devices="3,456 TPU v4 chips",
    device_count=3456,
    cluster="tpu-v4",
    epochs=80.0,
    top1_percent=75.96,
    seconds=13.7,
    target_percent=75.9,
    mlperf="v1.0 closed",
)

SOURCES = sources(
    S=f"{families.MLPERF} comm.wire",
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip",
)


def get_config() -> ConfigDict:
    """3,456 workers of 16 images."""
    config = families.mlperf(
        workers=3456,
        images_per_worker=16,
        span=4,
        dtype="bfloat16",
        flavour="mlperf",
        length="1860 steps",
        peak=25.67,
        warmup="29 epochs",
        momentum=0.94053,
        weight_decay=1e-4,
    )
    return config
