"""MLPerf reference convergence point: batch 1,632 in 35 epochs, for one node or one GPU.

    python train.py --config=configs/mlperf_rcp_1632.py --config.data.data_dir=DATA

The smallest of the reference convergence points of ruleset 4.0.0: 35.0 epochs to 75.9 % in the mean
of 17 runs (33 to 37), of a schedule of 37: 27,476 logged steps after the warm-up. A span of 204
images makes 8 workers.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/logging, rcp_checker/training_4.0.0/rcps_resnet.json",
    provenance="S",
    devices="not stated (NVIDIA)",
    epochs=35.0,
    top1_percent=75.9,
    target_percent=75.9,
    mlperf="v4.0 reference point",
)

SOURCES = sources(
    S="""
        norm.span optimizer.name optimizer.trust_coefficient optimizer.epsilon
        optimizer.weight_decay optimizer.momentum schedule.peak schedule.warmup schedule.end
        schedule.decay schedule.power
    """,
    D="batch.workers batch.images_per_worker schedule.length",
    C="""
        loss.label_smoothing optimizer.flavour data.crop_area data.flip data.image_size
        model.dtype comm.wire
    """,
)


def get_config() -> ConfigDict:
    """8 workers of 204 images for 37 epochs."""
    return families.mlperf(
        workers=8,
        images_per_worker=204,
        dtype="float16",
        flavour="nvidia",
        length="37 epochs",
        peak=7.4,
        warmup="2 epochs",
        momentum=0.9,
        weight_decay=5e-5,
    )
