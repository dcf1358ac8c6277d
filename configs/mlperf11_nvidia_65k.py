"""NVIDIA, MLPerf v1.1: batch 64,800 on 4,320 A100 in 20.8 s.

    python train.py --config=configs/mlperf11_nvidia_65k.py --config.data.data_dir=DATA

The MLPerf v1.1 closed-division submission of NVIDIA: LARS, BatchNorm statistics over 30 images (2
workers); 76.27 % in 20.8 s (their logs), reached at epoch 85.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v1.1, NVIDIA",
    provenance="S",
    devices="4,320 A100",
    device_count=4320,
    cluster="dgx-a100",
    epochs=85.0,
    top1_percent=76.27,
    seconds=20.8,
    target_percent=75.9,
    mlperf="v1.1 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """4,320 workers of 15 images."""
    return families.mlperf(
        workers=4320,
        images_per_worker=15,
        span=2,
        dtype="float16",
        flavour="nvidia",
        length="90 epochs",
        peak=24.699,
        warmup="31 epochs",
        momentum=0.951807,
        weight_decay=1e-4,
    )
