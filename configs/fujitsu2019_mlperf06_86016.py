"""Fujitsu, MLPerf v0.6 open division: batch 86,016 on 2,048 V100 in 70.4 s.

    python train.py --config=configs/fujitsu2019_mlperf06_86016.py --config.data.data_dir=DATA

The sister run of the 74.7 s record, by the same team on the same cluster three months later; every
value is read from its parameter file, code and five logs (75.93 to 76.11 %, 70.39 to 70.45 s). In
an epoch each GPU has its own 625 images, 15 steps of 42; examples are repeated to fill them. From
epoch 85 it trains on centre crops in index order. Momentum, crops, coefficient and the switch of
augmentation deviate from the closed division's rules.
One difference: here running statistics are averaged over all workers before evaluation; there each
rank evaluated its own images with its own statistics.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

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
    S=f"{families.FUJITSU} batch.workers batch.images_per_worker norm.span data.image_size "
    "optimizer.name schedule.length schedule.warmup schedule.decay_end model.dtype comm.wire",
)


def get_config() -> ConfigDict:
    """2,048 workers of 42 images for 90 epochs of 15 steps."""
    return families.fujitsu(images_per_worker=42, steps_per_epoch=15)
