"""NVIDIA, MLPerf v0.6: batch 33,280 on 512 V100 (32 DGX-2H) in 155.4 s.

    python train.py --config=configs/mlperf06_nvidia_33k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
76.04 to 76.26 % in 155.4 s (their logs), reached at epoch 72. NVIDIA decays the bias of the head
and corrects momentum when the learning rate changes.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, NVIDIA",
    provenance="S",
    devices="512 V100 (32 DGX-2H)",
    device_count=512,
    cluster="dgx2h-v100",
    epochs=72.0,
    top1_percent=76.15,
    seconds=155.4,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S=f"{families.MXNET_V06} {families.STATISTICS}",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """512 workers of 65 images."""
    return families.nvidia_v06(
        workers=512,
        images_per_worker=65,
        epochs=77,
        peak=31.2,
        warmup_epochs=25,
    )
