"""NVIDIA, MLPerf v4.0: batch 3,200 on 8 H200 in 721.6 s.

    python train.py --config=configs/mlperf40_nvidia_3200.py --config.data.data_dir=DATA

The MLPerf v4.0 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
76.1 % in 721.6 s (their logs), reached at epoch 35. One node; 789.8 s on 8 H100.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v4.0, NVIDIA",
    provenance="S",
    devices="8 H200",
    device_count=8,
    cluster="h200-node",
    epochs=35.0,
    top1_percent=76.1,
    seconds=721.6,
    target_percent=75.9,
    mlperf="v4.0 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """8 workers of 400 images."""
    return families.mlperf(
        workers=8,
        images_per_worker=400,
        dtype="float16",
        flavour="nvidia",
        length="37 epochs",
        peak=11.0,
        warmup="2 epochs",
        momentum=0.9,
        weight_decay=5e-5,
    )
