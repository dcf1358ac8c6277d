"""Smith et al. 2018: a larger batch instead of a smaller learning rate, on 128 TPU v2.

    python train.py --config=configs/smith2018_8k_16k.py --config.data.data_dir=DATA

Don't Decay the Learning Rate, Increase the Batch Size (arXiv 1711.00489): batch 8,192 up to epoch
30, then 16,384, where others decay the learning rate; under 30 minutes to 76.1 % (abstract). Rate,
warm-up, the later drops, decay and the 64 images that share statistics are from memory and
unverified. As the batch doubles, each of 128 devices holds two workers.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="arXiv 1711.00489",
    provenance="A+M",
    devices="128 TPU v2 (half or full pod)",
    device_count=128,
    epochs=90,
    top1_percent=76.1,
    seconds=1800.0,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.momentum
        optimizer.decay_skip schedule.length loss.label_smoothing model.dtype
    """,
    M="""
        batch.stages norm.span schedule.peak schedule.warmup schedule.decay schedule.points
        optimizer.weight_decay
    """,
    U="data.flip",
)


def get_config() -> ConfigDict:
    """128 workers of 64 images, 256 from epoch 30."""
    config = imagenet(workers=128, images_per_worker=64, dtype="bfloat16")
    config.batch.stages = ("30 epochs: batch.workers=256",)
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "90 epochs"
    config.schedule.peak = 3.2
    config.schedule.warmup = "5 epochs"
    config.schedule.decay = "pieces"
    config.schedule.points = ("60 epochs: 0.1", "80 epochs: 0.01")
    config.loss.label_smoothing = 0.0
    config.comm.wire = "float32"
    return config
