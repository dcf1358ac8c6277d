"""NVIDIA, MLPerf v0.6: batch 54,080 on 1,040 V100 (130 DGX-1) in 101.5 s.

    python train.py --config=configs/mlperf06_nvidia_54k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
75.94 to 76.28 % in 101.5 s (their logs), reached at epoch 82 to 86. NVIDIA decays the bias of the
head and corrects momentum when the learning rate changes.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="1,040 V100 (130 DGX-1)",
    device_count=1040,
    cluster="dgx1-v100",
    epochs=84.0,
    top1_percent=76.1,
    seconds=101.5,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S=families.MXNET_V06,
    C=families.STATISTICS,
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """1,040 workers of 52 images."""
    return families.nvidia_v06(
        workers=1040,
        images_per_worker=52,
        epochs=90,
        peak=38.0,
        warmup_epochs=25,
    )
