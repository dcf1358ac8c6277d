"""Alibaba AIACC 2020: growing images and cycled momentum on one node of 8 V100 in 21.6 minutes.

    python train.py --config=configs/aiacc2020_8v100.py --config.data.data_dir=DATA

DAWNBench: 12 epochs at 96 pixels, 6 at 128, 2 at 224 and one at 288 with rectangular validation;
batch 2,048, then 1,024; Nesterov SGD. 93.05 % top-5 and 75.58 % top-1 in 21 epochs.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="stanford-futuredata/dawn-bench-entries",
    provenance="S",
    devices="8 V100",
    device_count=8,
    cluster="dgx1-v100",
    epochs=21.0,
    top1_percent=75.58,
    seconds=1297.7,
    software="v0.7",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.nesterov
        optimizer.momentum optimizer.momentum_at_peak optimizer.weight_decay schedule.length
        schedule.peak schedule.warmup schedule.decay schedule.end model.dtype
    """,
    U="""
        batch.stages loss.label_smoothing data.crop_area norm.span optimizer.decay_skip
        data.flip comm.wire
    """,
)


def get_config() -> ConfigDict:
    """8 workers of 256 images, of 128 in the last epoch."""
    config = imagenet(workers=8, images_per_worker=256, dtype="float16")
    config.data.image_size = 96
    config.data.crop_area = (0.15, 1.0)
    config.batch.stages = (
        "12 epochs: data.image_size=128",
        "18 epochs: data.image_size=224 data.crop_area=(0.11,1.0)",
        "20 epochs: batch.images_per_worker=128 data.image_size=288 data.rectangular=true",
    )
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.96
    config.optimizer.momentum_at_peak = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "21 epochs"
    config.schedule.peak = 1.2
    config.schedule.warmup = "5 epochs"
    config.schedule.decay = "linear"
    config.schedule.end = 1e-4
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "1 epochs"
    return config
