"""Goyal et al. 2017: batch 8,192 on 256 P100 in one hour.

    python train.py --config=configs/goyal2017_8k.py --config.data.data_dir=DATA

Accurate, Large Minibatch SGD (arXiv 1706.02677): the learning rate is proportional to the batch,
after a warm-up of five epochs from 0.1, the value for a batch of 256; BatchNorm statistics of each
worker's 32 images; the last scale of each residual branch starts at 0; no weight decay of
BatchNorm. Top-1 76.26 ± 0.09 % in about an hour (from notes on the paper).
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="arXiv 1706.02677",
    provenance="A",
    devices="256 P100",
    device_count=256,
    epochs=90,
    top1_percent=76.26,
    seconds=3600.0,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.nesterov
        optimizer.momentum optimizer.weight_decay optimizer.decay_skip schedule.length
        schedule.per_256 schedule.warmup schedule.warmup_start schedule.decay schedule.points
        loss.label_smoothing norm.span norm.last_gamma model.dtype
    """,
    M="norm.momentum data.crop_area model.head_deviation",
    U="data.flip",
)


def get_config() -> ConfigDict:
    """256 workers of 32 images for 90 epochs."""
    config = imagenet(workers=256, images_per_worker=32, dtype="float32")
    config.model.head_deviation = 0.01
    config.norm.last_gamma = 0.0
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "90 epochs"
    config.schedule.per_256 = 0.1
    config.schedule.warmup = "5 epochs"
    config.schedule.warmup_start = 0.1
    config.schedule.decay = "pieces"
    config.schedule.points = ("30 epochs: 0.1", "60 epochs: 0.01", "80 epochs: 0.001")
    config.loss.label_smoothing = 0.0
    return config
