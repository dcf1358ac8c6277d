"""ResNet strikes back, procedure A3: LAMB and binary cross-entropy, 78.1 % in 100 epochs.

    python train.py --config=configs/timm_rsb_a3.py --config.data.data_dir=DATA

Wightman, Touvron and Jégou 2021: 160 pixels, evaluation at 224; RandAugment, mixup and CutMix; a
mixed image has both classes (targets above 0.2 become 1). Two things differ from timm: it draws one
λ for the batch of a GPU and here each pair of images has its own, and its train interpolation is
bilinear or bicubic at random.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="huggingface/pytorch-image-models; arXiv 2110.00476, table 2",
    provenance="A+M",
    devices="4 V100",
    device_count=4,
    epochs=100.0,
    top1_percent=78.1,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size data.evaluation_size optimizer.name
        schedule.length loss.kind
    """,
    M="""
        data.flip data.evaluation_crop augment.policy augment.mixup augment.cutmix
        norm.last_gamma optimizer.clip_norm optimizer.momentum optimizer.epsilon
        optimizer.weight_decay optimizer.decay_skip schedule.peak schedule.warmup
        schedule.warmup_start schedule.decay schedule.end loss.target_threshold
        loss.label_smoothing model.dtype
    """,
    U="data.resampling norm.span",
)


def get_config() -> ConfigDict:
    """4 workers of 512 images for 100 epochs."""
    config = imagenet(workers=4, images_per_worker=512, dtype="float16")
    config.norm.last_gamma = 0.0
    config.data.image_size = 160
    config.data.evaluation_size = 224
    config.data.evaluation_crop = 0.95
    config.data.resampling = "antialias"
    config.augment.policy = "rand-m6-mstd0.5-inc1"
    config.augment.mixup = 0.1
    config.augment.cutmix = 1.0
    config.optimizer.name = "lamb"
    config.optimizer.momentum = 0.9
    config.optimizer.epsilon = 1e-6
    config.optimizer.clip_norm = 1.0
    config.optimizer.weight_decay = 0.02
    config.schedule.length = "100 epochs"
    config.schedule.peak = 8e-3
    config.schedule.warmup = "5 epochs"
    config.schedule.warmup_start = 1e-4
    config.schedule.decay = "cosine"
    config.schedule.end = 1e-6
    config.loss.kind = "sigmoid"
    config.loss.target_threshold = 0.2
    config.loss.label_smoothing = 0.0
    config.comm.wire = "float32"
    config.run.evaluate_every = "4 epochs"
    return config
