"""SIAT, MLPerf v0.7: batch 32,768 on 512 Ascend 910 in 93.5 s.

    python train.py --config=configs/siat07_close_32k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of SIAT: LARS, BatchNorm statistics of each worker; 76.01
% in 93.5 s (their logs), reached at epoch 60. Rate, warm-up and momentum are those of its log. The
rules of the closed division fix epsilon at 0.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, SIAT",
    provenance="S",
    devices="512 Ascend 910",
    device_count=512,
    cluster="ascend910",
    epochs=60.0,
    top1_percent=76.01,
    seconds=93.5,
    target_percent=75.9,
    mlperf="v0.7 closed",
)

SOURCES = sources(
    S=families.MLPERF,
    C=families.STATISTICS,
    U="data.crop_area data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """512 workers of 64 images."""
    config = families.mlperf(
        workers=512,
        images_per_worker=64,
        dtype="float16",
        flavour="ascend",
        length="68 epochs",
        peak=20.81,
        warmup="11 epochs",
        momentum=0.9395,
        weight_decay=1e-4,
    )
    config.optimizer.epsilon = 0.0
    return config
