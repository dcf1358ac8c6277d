"""SIAT, MLPerf v0.7: batch 32,768 on 512 Ascend 910 in 93.5 s.

    python train.py --config=configs/siat07_close_32k.py --config.data.data_dir=DATA

The MLPerf v0.7 closed-division submission of SIAT: LARS, statistics of its own images; 76.01 % in
93.5 s (their logs), reached at epoch 60. Rate, warm-up and momentum are those of its log. The
closed division's epsilon of 0 is assumed.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, polynomial, sources

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
    S="""
        batch.workers batch.images_per_worker data.image_size data.flip norm.span optimizer.name
        optimizer.trust_coefficient optimizer.weight_decay optimizer.momentum
        optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak schedule.warmup
        schedule.end schedule.decay schedule.power loss.label_smoothing model.dtype
        optimizer.flavour
    """,
    U="optimizer.epsilon data.crop_area comm.wire",
    C="norm.momentum norm.epsilon",
)


def get_config() -> ConfigDict:
    """512 workers of 64 images."""
    config = imagenet(workers=512, images_per_worker=64, dtype="float16")
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = "ascend"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = 0.9395
    config.optimizer.weight_decay = 1e-4
    polynomial(config, length="68 epochs", peak=20.81, warmup="11 epochs")
    config.loss.label_smoothing = 0.1
    config.optimizer.epsilon = 0.0
    config.run.evaluate_every = "4 epochs"
    return config
