"""NVIDIA, MLPerf v0.7: batch 34,560 on 768 A100 in 63.5 s.

    python train.py --config=configs/mlperf07_nvidia_35k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of NVIDIA: LARS, BatchNorm statistics of each worker;
76.07 % in 63.5 s (their logs).
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, NVIDIA",
    provenance="S",
    devices="768 A100",
    device_count=768,
    cluster="dgx-a100-40g",
    epochs=59.0,
    top1_percent=76.07,
    seconds=63.5,
    target_percent=75.9,
    mlperf="v0.7 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=f"{families.STATISTICS} data.crop_area",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """768 workers of 45 images."""
    return families.mlperf(
        workers=768,
        images_per_worker=45,
        dtype="float16",
        flavour="nvidia",
        length="59 epochs",
        peak=21.6,
        warmup="17 epochs",
        momentum=0.94,
        weight_decay=2.5e-5,
    )
