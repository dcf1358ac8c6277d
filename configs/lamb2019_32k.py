"""You et al. 2019: LAMB at batch 32,768 on 128 TPU v3 chips.

    python train.py --config=configs/lamb2019_32k.py --config.data.data_dir=DATA

The authors' own ResNet-50 with LAMB: 76.34 % after 90 epochs (their log). BatchNorm statistics are
shared by groups of the 256 cores; the size of a group is unknown, two is assumed.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="fastalgo/imagenet_resnet50_lamb; arXiv 1904.00962",
    provenance="S",
    devices="128 TPU v3 chips",
    device_count=256,
    cluster="tpu-v3",
    epochs=90.0,
    top1_percent=76.34,
    software="v0.6",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.momentum
        optimizer.second_momentum optimizer.epsilon optimizer.weight_decay optimizer.decay_skip
        schedule.length schedule.peak schedule.warmup schedule.decay loss.label_smoothing
        model.dtype
    """,
    U="norm.span optimizer.trust_skip data.flip",
)


def get_config() -> ConfigDict:
    """256 cores of 128 images for 90 epochs."""
    config = imagenet(workers=256, images_per_worker=128, dtype="bfloat16")
    config.norm.span = 2
    config.optimizer.name = "lamb"
    config.optimizer.momentum = 0.9
    config.optimizer.second_momentum = 0.999
    config.optimizer.epsilon = 1e-6
    config.optimizer.weight_decay = 1.5
    config.optimizer.decay_skip = ("bn",)
    config.optimizer.trust_skip = ("bn",)
    config.schedule.length = "3519 steps"
    config.schedule.peak = 0.04
    config.schedule.warmup = "782 steps"
    config.schedule.decay = "linear"
    config.loss.label_smoothing = 0.1
    config.comm.wire = "float32"
    return config
