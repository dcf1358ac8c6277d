"""Alibaba AIACC 2020: growing images, LARS and cycled momentum on 128 V100 in 157.6 s.

    python train.py --config=configs/aiacc2020_128v100.py --config.data.data_dir=DATA

DAWNBench: 13 epochs at 96 pixels, 11 at 128, 3 at 224 and one at 288 with rectangular validation;
batch 32,768, then 16,384; Nesterov LARS whose trust ratio is clipped to [1e-5, 1]. 93.04 % top-5
and 75.75 % top-1 after 28 epochs. How its momentum moves between 0.98 and 0.90 is not published;
here it falls as the learning rate rises. Crops at 224 pixels had a least area of 0.11 to 0.15. Its
"rectified" learning rate is left out.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="stanford-futuredata/dawn-bench-entries",
    provenance="S",
    devices="128 V100 (32 Gbit/s network)",
    device_count=128,
    epochs=28.0,
    top1_percent=75.75,
    seconds=157.6,
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size optimizer.name optimizer.nesterov
        optimizer.trust_coefficient optimizer.flavour optimizer.momentum
        optimizer.weight_decay schedule.length schedule.peak schedule.warmup schedule.decay
        schedule.end loss.label_smoothing model.dtype
    """,
    U="""
        batch.stages optimizer.momentum_at_peak schedule.warmup_start data.crop_area norm.span
        optimizer.trust_skip optimizer.decay_skip data.flip comm.wire
    """,
)


def get_config() -> ConfigDict:
    """128 workers of 256 images, of 128 in the last epoch."""
    config = imagenet(workers=128, images_per_worker=256, dtype="float16")
    config.data.image_size = 96
    config.data.crop_area = (0.15, 1.0)
    config.batch.stages = (
        "13 epochs: data.image_size=128",
        "24 epochs: data.image_size=224 data.crop_area=(0.11,1.0)",
        "27 epochs: batch.images_per_worker=128 data.image_size=288 data.rectangular=true",
    )
    config.optimizer.nesterov = True
    config.optimizer.trust_coefficient = 0.0008
    config.optimizer.flavour = "mlperf trust_clip=(1e-5,1.0)"
    config.optimizer.momentum = 0.98
    config.optimizer.momentum_at_peak = 0.9
    config.optimizer.weight_decay = 1e-4
    config.schedule.length = "28 epochs"
    config.schedule.peak = 25.0
    config.schedule.warmup = "14 epochs"
    config.schedule.warmup_start = 0.2
    config.schedule.decay = "linear"
    config.schedule.end = 0.2
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "1 epochs"
    return config
