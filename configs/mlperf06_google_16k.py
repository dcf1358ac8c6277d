"""Google, MLPerf v0.6: batch 16,384 on 64 TPU v3 chips in 673 s.

    python train.py --config=configs/mlperf06_google_16k.py --config.data.data_dir=DATA

The MLPerf v0.6 closed-division submission of Google: LARS, BatchNorm statistics of each worker;
75.9 to 76.4 % in 673 s (their logs), reached at epoch 64. Google added an L2 term to the loss, so
kernels decay twice. Its size in this run is unknown; here it equals the weight decay.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, Google",
    provenance="S",
    devices="64 TPU v3 chips",
    device_count=128,
    cluster="tpu-v3",
    epochs=64.0,
    top1_percent=76.15,
    seconds=673.0,
    target_percent=75.9,
    mlperf="v0.6 closed",
)

SOURCES = sources(
    S=f"{families.MLPERF} data.crop_area",
    C=families.STATISTICS,
    U="loss.l2 loss.l2_skip data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """128 workers of 128 images."""
    config = families.mlperf(
        workers=128,
        images_per_worker=128,
        dtype="bfloat16",
        flavour="mlperf",
        length="72 epochs",
        peak=25.0,
        warmup="5 epochs",
        momentum=0.9,
        weight_decay=2e-4,
    )
    config.comm.wire = "float32"
    config.loss.l2 = 2e-4
    config.loss.l2_skip = ("bn",)
    return config
