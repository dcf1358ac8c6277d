"""NVIDIA, MLPerf v3.0: batch 32,256 on 768 H100 in 22.2 s.

    python train.py --config=configs/mlperf30_nvidia_32k.py --config.data.data_dir=DATA

The MLPerf v3.0 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
76.1 % in 22.2 s (their logs), reached at epoch 56.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v3.0, NVIDIA",
    provenance="S",
    devices="768 H100",
    device_count=768,
    cluster="dgx-h100",
    epochs=56.0,
    top1_percent=76.1,
    seconds=22.2,
    target_percent=75.9,
    mlperf="v3.0 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """768 workers of 42 images."""
    return families.mlperf(
        workers=768,
        images_per_worker=42,
        dtype="float16",
        flavour="nvidia",
        length="58 epochs",
        peak=21.2,
        warmup="16 epochs",
        momentum=0.95,
        weight_decay=2.5e-5,
    )
