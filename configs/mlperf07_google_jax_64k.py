"""Google, MLPerf v0.7: batch 65,536 on 4,096 TPU v3 chips in 28.3 s.

    python train.py --config=configs/mlperf07_google_jax_64k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of Google: LARS, BatchNorm statistics over 64 images (8
workers); 76.07 % in 28.3 s (their logs). The research submission in JAX: 8 images a core, the first
convolution on blocks of 2×2 pixels, plain momentum on biases and BatchNorm. Its epochs are
stretched to 19.75 steps: 33 of warm-up, and a decay that ends 1,166.25 steps later. It resampled
bicubically; here linearly.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, Google",
    provenance="S",
    devices="4,096 TPU v3 chips",
    device_count=8192,
    cluster="tpu-v3",
    epochs=92.0,
    top1_percent=76.07,
    seconds=28.3,
    target_percent=75.9,
    mlperf="v0.7 closed",
)

SOURCES = sources(
    S=f"{families.MLPERF} {families.STATISTICS} data.crop_area norm.last_gamma comm.wire",
    U="data.flip",
    D="schedule.decay_end",
)


def get_config() -> ConfigDict:
    """8,192 workers of 8 images."""
    config = families.mlperf(
        workers=8192,
        images_per_worker=8,
        span=8,
        dtype="bfloat16",
        flavour="mlperf",
        length="1817 steps",
        peak=23.080977304670448,
        warmup="651.75 steps",
        momentum=0.9537213777059405,
        weight_decay=1e-4,
    )
    config.schedule.decay_end = "1818 steps"
    config.comm.wire = "float32"
    config.norm.last_gamma = 0.0
    return config
