"""torchvision, second weights: batch 1,024 on 8 GPUs, 80.86 % in 600 epochs.

    python train.py --config=configs/torchvision_v2.py --config.data.data_dir=DATA

TrivialAugment, mixup, CutMix and random erasing at 176 pixels; evaluation of 224 pixels of 232.
The published accuracy is that of the averaged weights (`ema_top1`). The published run also repeats
each example four times in a batch, this recipe does not; and torchvision draws one λ for the batch
of a GPU, here each pair of images has its own. All values are from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="pytorch/vision, references/classification",
    provenance="M",
    devices="8 GPUs",
    device_count=8,
    epochs=600.0,
    top1_percent=80.86,
)

SOURCES = sources(
    M="""
        batch.workers batch.images_per_worker data.image_size data.evaluation_size
        data.evaluation_crop data.resampling data.flip augment.policy augment.erase augment.mixup
        augment.cutmix optimizer.name optimizer.momentum optimizer.weight_decay
        optimizer.decay_skip schedule.length schedule.peak schedule.warmup schedule.warmup_start
        schedule.decay schedule.ema loss.label_smoothing
    """,
    U="model.dtype norm.span",
)


def get_config() -> ConfigDict:
    """8 workers of 128 images for 600 epochs."""
    config = imagenet(workers=8, images_per_worker=128, dtype="float32")
    config.data.image_size = 176
    config.data.evaluation_size = 224
    config.data.evaluation_crop = 224 / 232
    config.data.resampling = "antialias"
    config.augment.policy = "trivialaugment"
    config.augment.erase = 0.1
    config.augment.mixup = 0.2
    config.augment.cutmix = 1.0
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 2e-5
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "600 epochs"
    config.schedule.peak = 0.5
    config.schedule.warmup = "5 epochs"
    config.schedule.warmup_start = 0.005
    config.schedule.decay = "cosine"
    config.schedule.ema = "30000000 samples"  # decay 0.99998: 600 epochs / (1 - decay)
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
