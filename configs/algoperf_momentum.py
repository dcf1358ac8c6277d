"""AlgoPerf target setting: momentum at batch 1,024 on 8 V100.

    python train.py --config=configs/algoperf_momentum.py --config.data.data_dir=DATA

The run that set AlgoPerf's ResNet-50 target: a long warm-up, then linear decay over 0.9008 of the
remaining steps; 77.4 %. Length and accuracy are from memory.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="mlcommons/algorithmic-efficiency",
    provenance="S",
    devices="8 V100",
    device_count=8,
    cluster="dgx1-v100",
    epochs=149.0,
    top1_percent=77.4,
    software="v2.0",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker optimizer.name optimizer.nesterov
        optimizer.weight_decay optimizer.momentum optimizer.decay_skip schedule.peak
        schedule.warmup schedule.decay schedule.end loss.label_smoothing
    """,
    D="schedule.decay_end",
    M="schedule.length",
    U="data.image_size data.flip norm.span",
)


def get_config() -> ConfigDict:
    """8 workers of 128 images for 149 epochs."""
    config = imagenet(workers=8, images_per_worker=128, dtype="float32")
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = False
    config.optimizer.momentum = 0.92748
    config.optimizer.weight_decay = 5.6688e-6
    config.optimizer.decay_skip = ()
    config.schedule.length = "149 epochs"
    config.schedule.peak = 4.1319
    config.schedule.warmup = "6999 steps"
    config.schedule.decay = "linear"
    config.schedule.end = 0.0041319
    config.schedule.decay_end = "90.45 %"
    config.loss.label_smoothing = 0.2
    config.run.evaluate_every = "1 epochs"
    return config
