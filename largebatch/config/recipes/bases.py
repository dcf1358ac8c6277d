"""Base configuration and schedule of recipes for ResNet-50 on ImageNet."""

from ml_collections import ConfigDict

from largebatch.config import default_config


def imagenet(*, workers: int, images_per_worker: int, dtype: str) -> ConfigDict:
    """Return a configuration of ResNet-50 at 224×224 pixels with random flips.

    Args:
      workers: number of workers (W).
      images_per_worker: images of each worker (n).
      dtype: number format of convolutions, and of gradients on the wire.
    """
    config = default_config()
    config.model.name = "resnet50"
    config.model.dtype = dtype
    config.batch.workers = workers
    config.batch.images_per_worker = images_per_worker
    config.data.source = "tfds:imagenet2012"
    config.data.image_size = 224
    config.data.flip = True
    config.comm.wire = dtype
    return config


def polynomial(
    config: ConfigDict, *, length: str, peak: float, warmup: str, end: float = 1e-4
) -> None:
    """Set the schedule of MLPerf's reference: linear warm-up, then polynomial decay of power 2.

    The default of ``end`` is the value that the MLPerf rules require for LARS.
    """
    config.schedule.length = length
    config.schedule.peak = peak
    config.schedule.warmup = warmup
    config.schedule.decay = "polynomial"
    config.schedule.power = 2.0
    config.schedule.end = end
