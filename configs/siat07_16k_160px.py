"""SIAT, MLPerf v0.7 open division: batch 16,384 at 160 pixels on 512 Ascend 910, 46.8 s.

    python train.py --config=configs/siat07_16k_160px.py --config.data.data_dir=DATA

20 epochs at 16,384, the cheapest published way to 75.9 % (rate 21.0 in its log, 27 in its script):
trained at 160 pixels on crops of 45 to 100 % of the area, evaluated at 224 on the middle 80 %;
cosine warm-up and decay, every scale of BatchNorm starts at 1.4. Coefficient and epsilon are the
defaults of the LARS operator, from memory. Its static loss scale of 512 is replaced by the
automatic one.
"""

from ml_collections import ConfigDict

from largebatch.recipes import Published, imagenet, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, SIAT",
    provenance="S",
    devices="512 Ascend 910",
    device_count=512,
    cluster="ascend910",
    epochs=20.0,
    top1_percent=76.04,
    seconds=46.8,
    target_percent=75.9,
    mlperf="v0.7 open",
)

SOURCES = sources(
    S="""
        batch.workers batch.images_per_worker data.image_size data.crop_area
        data.evaluation_size data.evaluation_crop norm.span norm.gamma norm.epsilon
        norm.momentum optimizer.name optimizer.flavour optimizer.weight_decay optimizer.momentum
        optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak schedule.warmup
        schedule.warmup_shape schedule.warmup_start schedule.decay loss.label_smoothing
        model.dtype
    """,
    M="optimizer.trust_coefficient optimizer.epsilon",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """512 workers of 32 images at 160 pixels."""
    config = imagenet(workers=512, images_per_worker=32, dtype="float16")
    config.norm.gamma = 1.4
    config.norm.epsilon = 1e-4
    config.norm.momentum = 0.9
    config.data.image_size = 160
    config.data.crop_area = (0.45, 1.0)
    config.data.evaluation_size = 224
    config.data.evaluation_crop = 0.8
    config.optimizer.flavour = "ascend"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.epsilon = 1e-5
    config.optimizer.momentum = 0.95
    config.optimizer.weight_decay = 1e-4
    config.schedule.length = "20 epochs"
    config.schedule.peak = 21.0
    config.schedule.warmup = "5.6 epochs"
    config.schedule.warmup_shape = "cosine"
    config.schedule.warmup_start = 0.8
    config.schedule.decay = "cosine"
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
