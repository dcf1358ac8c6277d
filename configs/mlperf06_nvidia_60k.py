"""NVIDIA, MLPerf v0.6: batch 59,904 on 1,536 V100 (96 DGX-2H) in 79.9 s.

    python train.py --config=configs/mlperf06_nvidia_60k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
75.99 to 76.02 % in 79.9 s (their logs). NVIDIA decays the bias of the head and corrects momentum
when the learning rate changes.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="1,536 V100 (96 DGX-2H)",
    device_count=1536,
    cluster="dgx2h-v100",
    epochs=90.0,
    top1_percent=76.0,
    seconds=79.9,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S=families.MXNET_V06,
    C=families.STATISTICS,
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """1,536 workers of 39 images."""
    return families.nvidia_v06(
        workers=1536,
        images_per_worker=39,
        epochs=90,
        peak=40.7,
        warmup_epochs=33,
    )
