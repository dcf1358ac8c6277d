"""Google, MLPerf v2.0: batch 32,768 on 4,096 TPU v4 chips in 11.4 s.

    python train.py --config=configs/mlperf20_google_32k.py --config.data.data_dir=DATA

The MLPerf v2.0 closed-division submission of Google: LARS, BatchNorm statistics over 64 images (8
workers); 76.01 % in 11.4 s (their logs). Its decay ends 1,731 steps after the warm-up.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

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
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
    D="schedule.decay_end",
)


def get_config() -> ConfigDict:
    """4,096 workers of 8 images."""
    config = families.mlperf(
        workers=4096,
        images_per_worker=8,
        span=8,
        dtype="bfloat16",
        flavour="mlperf",
        length="2355 steps",
        peak=27.5,
        warmup="16 epochs",
        momentum=0.9321,
        weight_decay=1e-4,
    )
    config.schedule.decay_end = "2356.57 steps"
    return config
