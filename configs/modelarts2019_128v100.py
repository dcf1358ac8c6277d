"""Huawei ModelArts 2019: growing images and LARS on 128 V100 in 162.3 s.

    python train.py --config=configs/modelarts2019_128v100.py --config.data.data_dir=DATA

DAWNBench: 15 epochs at 96 pixels, 16 at 128, 4 at 224 and one at 288; batch 32,768, then 16,384;
LARS with Nesterov momentum that moves between 0.9 and 0.98, "linear cosine" decay from 28.0 to 0.2,
here cosine. Warm-up, trust coefficient, label smoothing, rectangular validation and the direction
of the momentum were not found in any source and are chosen here.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="stanford-futuredata/dawn-bench-entries",
    provenance="S",
    devices="128 V100 (InfiniBand)",
    device_count=128,
    cluster="dgx1-v100",
    epochs=36.0,
    top1_percent=75.33,
    seconds=162.3,
    software="v0.6",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.nesterov
        optimizer.momentum optimizer.weight_decay schedule.length schedule.peak schedule.end
        model.dtype
    """,
    U="""
        batch.stages optimizer.momentum_at_peak schedule.decay optimizer.trust_coefficient
        optimizer.epsilon schedule.warmup data.crop_area norm.span optimizer.trust_skip
        optimizer.decay_skip loss.label_smoothing data.flip comm.wire
    """,
)


def get_config() -> ConfigDict:
    """128 workers of 256 images, of 128 in the last epoch."""
    config = imagenet(workers=128, images_per_worker=256, dtype="float16")
    config.data.image_size = 96
    config.data.crop_area = (0.15, 1.0)
    config.batch.stages = (
        "15 epochs: data.image_size=128",
        "31 epochs: data.image_size=224",
        "35 epochs: batch.images_per_worker=128 data.image_size=288 data.rectangular=true",
    )
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.98
    config.optimizer.momentum_at_peak = 0.9
    config.optimizer.weight_decay = 1e-4
    config.schedule.length = "36 epochs"
    config.schedule.peak = 28.0
    config.schedule.warmup = "14 epochs"
    config.schedule.decay = "cosine"
    config.schedule.end = 0.2
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "1 epochs"
    return config
