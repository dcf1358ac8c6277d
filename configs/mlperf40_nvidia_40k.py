"""NVIDIA, MLPerf v4.0: batch 40,448 on 2,528 H100 in 13.7 s.

    python train.py --config=configs/mlperf40_nvidia_40k.py --config.data.data_dir=DATA

The MLPerf v4.0 closed-division submission of NVIDIA: LARS, BatchNorm statistics over 32 images (2
workers); 76.18 % in 13.7 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v4.0, NVIDIA",
    provenance="S",
    devices="2,528 H100",
    device_count=2528,
    cluster="dgx-h100",
    epochs=70.0,
    top1_percent=76.18,
    seconds=13.7,
    target_percent=75.9,
    mlperf="v4.0 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """2,528 workers of 16 images."""
    return families.mlperf(
        workers=2528,
        images_per_worker=16,
        span=2,
        dtype="float16",
        flavour="nvidia",
        length="70 epochs",
        peak=19.4,
        warmup="24 epochs",
        momentum=0.95,
        weight_decay=1e-4,
    )
