"""fast.ai and DIU 2018: growing images and batches on 128 V100, 18 minutes.

    python train.py --config=configs/fastai2018_16n.py --config.data.data_dir=DATA

DAWNBench, 16 machines of 8 V100: images of 128, 224 and 288 pixels, batches of 8,192 to 24,576,
plain SGD whose learning rate follows the batch, rectangular validation at the end. 93.11 % top-5
and 75.67 % top-1 after 38 epochs in 1,085 s (their log). The least area of crops at 224 pixels is
from another version of their script. Their loss scale of 1,024 is replaced by the automatic one.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="diux-dev/imagenet18, DAWNBench log",
    provenance="S",
    devices="128 V100 (16 p3.16xlarge)",
    device_count=128,
    epochs=38,
    top1_percent=75.67,
    seconds=1085.0,
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.momentum
        optimizer.weight_decay optimizer.decay_skip schedule.length schedule.peak
        schedule.warmup schedule.warmup_start schedule.decay schedule.points
        loss.label_smoothing norm.span norm.last_gamma model.dtype
    """,
    C="batch.stages",
    U="data.crop_area data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """128 workers of 64 to 192 images at 128 to 288 pixels."""
    config = imagenet(workers=128, images_per_worker=64, dtype="float16")
    config.norm.last_gamma = 0.0
    config.data.image_size = 128
    config.batch.stages = (
        "6 epochs: batch.images_per_worker=128",
        "16 epochs: batch.images_per_worker=64 data.image_size=224 data.crop_area=(0.087,1.0)",
        "19 epochs: batch.images_per_worker=192",
        "37 epochs: batch.images_per_worker=128 data.image_size=288 "
        "data.crop_area=(0.5,1.0) data.rectangular=true",
    )
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "39 epochs"
    config.schedule.peak = 3.76
    config.schedule.warmup = "6 epochs"
    config.schedule.warmup_start = 1.88
    config.schedule.decay = "pieces"
    config.schedule.points = (
        "16 epochs: 0.5",
        "19 epochs: 0.15",
        "31 epochs: 0.015",
        "37 epochs: 0.01",
        "38 epochs: 0.001",
    )
    config.loss.label_smoothing = 0.0
    config.run.evaluate_every = "2 epochs"
    return config
