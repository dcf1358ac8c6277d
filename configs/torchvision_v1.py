"""torchvision, first weights: batch 256 on 8 GPUs, 76.13 % in 90 epochs.

    python train.py --config=configs/torchvision_v1.py --config.data.data_dir=DATA

The usual small-batch baseline; all values are from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="pytorch/vision, references/classification",
    provenance="M",
    devices="8 GPUs",
    device_count=8,
    epochs=90.0,
    top1_percent=76.13,
)

SOURCES = sources(
    M="""
        batch.workers batch.images_per_worker data.image_size data.flip data.crop_area
        optimizer.name optimizer.weight_decay optimizer.momentum optimizer.decay_skip
        schedule.length schedule.per_256 schedule.warmup schedule.decay schedule.points
        loss.label_smoothing model.dtype
    """,
    U="norm.span",
)


def get_config() -> ConfigDict:
    """8 workers of 32 images for 90 epochs."""
    config = imagenet(workers=8, images_per_worker=32, dtype="float32")
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ()
    config.schedule.length = "90 epochs"
    config.schedule.per_256 = 0.1
    config.schedule.warmup = "0 epochs"
    config.schedule.decay = "pieces"
    config.schedule.points = ("30 epochs: 0.1", "60 epochs: 0.01")
    config.loss.label_smoothing = 0.0
    config.run.evaluate_every = "1 epochs"
    return config
