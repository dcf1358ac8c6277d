"""AlgoPerf target setting: momentum at batch 1,024 on 8 V100.

    python train.py --config=configs/algoperf_momentum.py --config.data.data_dir=DATA

The run that set AlgoPerf's ResNet-50 target: a long warm-up and decay close to 1 on the way to 77.4
%. Length and accuracy are from memory; whether momentum was Nesterov's was not read, nor what it
did not decay.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="mlcommons/algorithmic-efficiency",
    provenance="S",
    devices="8 V100",
    device_count=8,
    cluster="dgx1-v100",
    epochs=149.0,
    top1_percent=77.4,
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker optimizer.name optimizer.weight_decay
        optimizer.momentum schedule.peak schedule.warmup schedule.decay schedule.end
        schedule.decay_end loss.label_smoothing
    """,
    M="schedule.length",
    U="optimizer.nesterov optimizer.decay_skip data.image_size data.flip",
)


def get_config() -> ConfigDict:
    """8 workers of 128 images for 149 epochs."""
    config = imagenet(workers=8, images_per_worker=128, dtype="float32")
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.momentum = 0.92748
    config.optimizer.weight_decay = 5.6688e-6
    config.optimizer.decay_skip = ("bn", "bias")
    config.schedule.length = "149 epochs"
    config.schedule.peak = 4.1319
    config.schedule.warmup = "6999 steps"
    config.schedule.decay = "linear"
    config.schedule.end = 0.0041319
    config.schedule.decay_end = "90.08 %"
    config.loss.label_smoothing = 0.2
    config.run.evaluate_every = "1 epochs"
    return config
