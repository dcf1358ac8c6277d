"""Akiba et al. 2017: batch 32,768 on 1,024 P100 in 15 minutes.

    python train.py --config=configs/akiba2017_32k.py --config.data.data_dir=DATA

Extremely Large Minibatch SGD (arXiv 1711.04325): RMSprop that changes to SGD around epoch 10, half
the learning rate for the first 40 epochs, no moving averages (evaluation uses the statistics of the
last batch, averaged over all workers), gradients in float16 on the wire. Top-1 74.9 % in 15
minutes. Formulas and factors are from notes on the paper; RMSprop's learning rate and share, and
the weight decay, are from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="arXiv 1711.04325",
    provenance="A",
    devices="1,024 P100",
    device_count=1024,
    epochs=90,
    top1_percent=74.9,
    seconds=900.0,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.momentum
        schedule.length schedule.per_256 schedule.warmup schedule.decay schedule.points
        loss.label_smoothing norm.span norm.statistics model.dtype comm.wire
    """,
    M="""
        optimizer.epsilon optimizer.second_momentum optimizer.rmsprop_rate
        optimizer.weight_decay optimizer.decay_skip
    """,
    U="data.flip",
)


def get_config() -> ConfigDict:
    """1,024 workers of 32 images for 90 epochs."""
    config = imagenet(workers=1024, images_per_worker=32, dtype="float32")
    config.norm.statistics = "last"
    config.optimizer.name = "rmsprop_sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.second_momentum = 0.99
    config.optimizer.rmsprop_rate = 3e-4
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "90 epochs"
    config.schedule.per_256 = 0.1
    config.schedule.warmup = "0 epochs"
    config.schedule.decay = "pieces"
    config.schedule.points = (
        "0 epochs: 0.5",
        "40 epochs: 0.075",
        "70 epochs: 0.01",
        "85 epochs: 0.001",
    )
    config.loss.label_smoothing = 0.0
    config.comm.wire = "float16"
    return config
