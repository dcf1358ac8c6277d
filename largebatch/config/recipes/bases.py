"""What recipes for ResNet-50 on ImageNet have in common. A recipe states all else itself."""

from ml_collections import ConfigDict

from largebatch.config import default_config


def imagenet(*, workers: int, images_per_worker: int, dtype: str) -> ConfigDict:
    """ResNet-50 at 224×224 with random flips, a global batch of so many workers.

    Args:
      workers: W.
      images_per_worker: n.
      dtype: of convolutions, and of gradients on the wire.
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
    """Linear warm-up from 0, then polynomial decay of power 2 to the last step.

    As MLPerf's reference has it; ``end`` is the rate that its rules fix for LARS.
    """
    config.schedule.length = length
    config.schedule.peak = peak
    config.schedule.warmup = warmup
    config.schedule.decay = "polynomial"
    config.schedule.power = 2.0
    config.schedule.end = end
