"""NVIDIA, MLPerf v0.5: batch 16,640 on 640 V100 in 374.5 s.

    python train.py --config=configs/mlperf05_nvidia_16k.py --config.data.data_dir=DATA

The MLPerf v0.5 closed-division submission of NVIDIA: SGD in MXNet, steps at epochs 30, 60 and 80;
the target was 74.9 % then, reached at epoch 81 of 100. Construction of the model was on the clock.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.5, NVIDIA",
    provenance="S",
    devices="640 V100 (80 DGX-1)",
    device_count=640,
    cluster="dgx1-v100",
    epochs=81.0,
    top1_percent=74.9,
    seconds=374.5,
    target_percent=74.9,
    mlperf="v0.5 closed",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size norm.span optimizer.name
        optimizer.weight_decay optimizer.momentum optimizer.decay_skip schedule.length
        schedule.peak schedule.warmup schedule.decay schedule.points
        loss.label_smoothing model.dtype
    """,
    U="optimizer.rate data.crop_area data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """640 workers of 26 images."""
    config = imagenet(workers=640, images_per_worker=26, dtype="float16")
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.name = "sgd"
    config.optimizer.rate = "inside"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_skip = ("bn",)
    config.schedule.length = "100 epochs"
    config.schedule.peak = 4.1
    config.schedule.warmup = "15 epochs"
    config.schedule.decay = "pieces"
    config.schedule.points = ("30 epochs: 0.1", "60 epochs: 0.01", "80 epochs: 0.001")
    config.loss.label_smoothing = 0.0
    config.run.evaluate_every = "4 epochs"
    return config
