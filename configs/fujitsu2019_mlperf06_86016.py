"""Fujitsu, MLPerf v0.6 open division: batch 86,016 on 2,048 V100 in 70.4 s.

    python train.py --config=configs/fujitsu2019_mlperf06_86016.py --config.data.data_dir=DATA

The sister run of the 74.7 s record, by the same team on the same cluster three months later; every
value is read from its parameter file, code and five logs (75.93 to 76.11 %, 70.39 to 70.45 s). Of
an epoch each GPU owns 625 images, 15 steps of 42; examples are repeated to fill them. From epoch 85
on it trains on centre crops in index order. Momentum, crops, coefficient and the switch of
augmentation deviate from the closed division's rules.
Different here: running statistics are averaged over all workers before evaluation, where each rank
of theirs evaluated its own images with its own.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.6, Fujitsu/benchmarks/resnet",
    provenance="S",
    devices="2,048 V100 (ABCI)",
    device_count=2048,
    cluster="abci",
    epochs=90,
    top1_percent=75.98,
    seconds=70.4,
    target_percent=75.9,
    mlperf="v0.6 open",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker norm.span data.image_size model.init
        model.head_deviation norm.momentum norm.epsilon data.epoch_end data.crop_area
        data.crop_ratio data.flip batch.stages optimizer.name optimizer.flavour
        optimizer.trust_coefficient optimizer.epsilon optimizer.momentum optimizer.weight_decay
        optimizer.trust_skip optimizer.decay_skip schedule.peak schedule.decay schedule.power
        schedule.end schedule.weight_decay schedule.length schedule.warmup schedule.decay_end
        loss.label_smoothing model.dtype comm.wire
    """,
)


def get_config() -> ConfigDict:
    """2,048 workers of 42 images for 90 epochs of 15 steps."""
    config = imagenet(workers=2048, images_per_worker=42, dtype="float16")
    config.model.init = "fan_in"
    config.model.head_deviation = 0.01
    config.norm.momentum = 0.9
    config.data.epoch_end = "repeat"
    config.data.crop_area = (0.05, 0.9)
    config.data.crop_ratio = (2 / 3, 3 / 2)
    config.batch.stages = ("85 epochs: data.train_crop=centre data.flip=false data.shuffle=false",)
    config.optimizer.flavour = "fujitsu"
    config.optimizer.trust_coefficient = 0.0025
    config.optimizer.epsilon = 1e-9
    config.optimizer.momentum = 0.96
    config.optimizer.weight_decay = 5e-5
    config.schedule.length = "1350 steps"
    config.schedule.peak = 13.0
    config.schedule.warmup = "540 steps"
    config.schedule.power = 2.2
    config.schedule.end = 0.0325
    config.schedule.decay_end = "1320 steps"
    config.schedule.weight_decay = "follow"
    config.loss.label_smoothing = 0.1
    config.run.log_every = "1 steps"
    config.run.layers_every = "15 steps"
    config.run.evaluate_first = "2 epochs"
    config.run.evaluate_every = "4 epochs"
    return config
