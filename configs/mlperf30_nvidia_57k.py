"""NVIDIA and CoreWeave, MLPerf v3.0: batch 57,344 on 3,584 H100 in 10.98 s.

    python train.py --config=configs/mlperf30_nvidia_57k.py --config.data.data_dir=DATA

The MLPerf v3.0 closed-division submission of NVIDIA and CoreWeave: LARS, BatchNorm statistics over
32 images (2 workers); 76.18 % in 10.98 s (their logs), reached at epoch 77.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v3.0, NVIDIA and CoreWeave",
    provenance="S",
    devices="3,584 H100",
    device_count=3584,
    cluster="dgx-h100",
    epochs=77.0,
    top1_percent=76.18,
    seconds=10.98,
    target_percent=75.9,
    mlperf="v3.0 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """3,584 workers of 16 images."""
    return families.mlperf(
        workers=3584,
        images_per_worker=16,
        span=2,
        dtype="float16",
        flavour="nvidia",
        length="78 epochs",
        peak=23.0,
        warmup="32 epochs",
        momentum=0.95,
        weight_decay=2.5e-5,
    )
