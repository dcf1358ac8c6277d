"""NVIDIA, MLPerf v2.0: batch 67,456 on 4,216 A100 in 19.2 s.

    python train.py --config=configs/mlperf20_nvidia_67k.py --config.data.data_dir=DATA

The MLPerf v2.0 closed-division submission of NVIDIA: LARS, BatchNorm statistics over 32 images (2
workers); 76.16 % in 19.2 s (their logs), reached at epoch 86.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v2.0, NVIDIA",
    provenance="S",
    devices="4,216 A100",
    device_count=4216,
    cluster="dgx-a100",
    epochs=86.0,
    top1_percent=76.16,
    seconds=19.2,
    target_percent=75.9,
    mlperf="v2.0 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """4,216 workers of 16 images."""
    return families.mlperf(
        workers=4216,
        images_per_worker=16,
        span=2,
        dtype="float16",
        flavour="nvidia",
        length="90 epochs",
        peak=24.699,
        warmup="31 epochs",
        momentum=0.951807,
        weight_decay=1e-4,
    )
