"""You et al. 2017: LARS at batch 32,768 on 2,048 Knights Landing in 20 minutes.

    python train.py --config=configs/you2017_32k.py --config.data.data_dir=DATA

ImageNet Training in Minutes (arXiv 1709.05011) with LARS (arXiv 1708.03888): 75.4 % in 20 minutes.
The peak learning rate was not found in any source; 32 is the MLPerf reference's for this batch.
Warm-up, weight decay and the form of LARS are from memory. The paper's strong augmentation is not
specified.

Decay: (1 - t/T)^2 counts here from the end of the warm-up, as in the MLPerf reference, which the
peak is from. Algorithm 1 of the paper reads as counting t from the start of training, and NVIDIA's
Caffe, a solver of that time, does so (`poly` in sgd_solver.cpp). After the warm-up the two curves
differ by one factor, (85/90)^2 = 0.892, of a peak that no source gives; what this recipe leaves out
is the jump from the peak to 0.892 of it where the warm-up ends.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, imagenet, polynomial, sources

PUBLISHED = Published(
    source="arXiv 1708.03888, 1709.05011",
    provenance="A+M",
    devices="2,048 KNL",
    device_count=2048,
    epochs=90,
    top1_percent=75.4,
    seconds=1200.0,
)

SOURCES = sources(
    A="""
        batch.workers batch.images_per_worker data.image_size optimizer.name
        optimizer.trust_coefficient optimizer.epsilon optimizer.momentum schedule.length
        schedule.decay schedule.power loss.label_smoothing norm.span model.dtype
    """,
    M="""
        optimizer.flavour schedule.warmup optimizer.weight_decay optimizer.trust_skip
        optimizer.decay_skip
    """,
    U="schedule.peak data.flip",
)


def get_config() -> ConfigDict:
    """2,048 workers of 16 images for 90 epochs."""
    config = imagenet(workers=2048, images_per_worker=16, dtype="float32")
    config.optimizer.flavour = "you2017"
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 5e-4
    polynomial(config, length="90 epochs", peak=32.0, warmup="5 epochs", end=0.0)
    config.loss.label_smoothing = 0.0
    return config
