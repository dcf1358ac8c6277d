"""Bases of the recipes for ImageNet, families with few differences, and documented options."""

from ml_collections import ConfigDict

from largebatch.config import default_config
from largebatch.config.facts import KNOWN_SETS

IMAGENET_EXAMPLES = KNOWN_SETS["tfds:imagenet2012"].train


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


MLPERF = """
    batch.workers batch.images_per_worker data.image_size norm.span model.dtype optimizer.name
    optimizer.flavour optimizer.trust_coefficient optimizer.epsilon optimizer.momentum
    optimizer.weight_decay optimizer.trust_skip optimizer.decay_skip schedule.length schedule.peak
    schedule.warmup schedule.decay schedule.power schedule.end loss.label_smoothing
"""
"""Options in the logs and configuration files of an MLPerf submission with LARS."""
STATISTICS = "norm.momentum norm.epsilon"
"""Options that only some of them have; the others are from other programs of the submitter."""


def mlperf(
    *,
    workers: int,
    images_per_worker: int,
    dtype: str,
    flavour: str,
    length: str,
    peak: float,
    warmup: str,
    momentum: float,
    weight_decay: float,
    span: int = 1,
) -> ConfigDict:
    """Return a LARS submission to the closed division: decay to 1e-4, label smoothing 0.1.

    Args:
      workers: number of workers (W).
      images_per_worker: images of each worker (n).
      dtype: number format of convolutions, and of gradients on the wire.
      flavour: flavour of LARS.
      length: duration of the schedule; most runs reached the target earlier.
      peak: peak learning rate.
      warmup: duration of the warm-up.
      momentum: momentum of LARS.
      weight_decay: weight decay of LARS.
      span: number of workers that share batch statistics.
    """
    config = imagenet(workers=workers, images_per_worker=images_per_worker, dtype=dtype)
    config.norm.span = span
    config.norm.momentum = 0.9
    config.data.crop_area = (0.05, 1.0)
    config.optimizer.flavour = flavour
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.momentum = momentum
    config.optimizer.weight_decay = weight_decay
    polynomial(config, length=length, peak=peak, warmup=warmup)
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config


MXNET_V06 = f"{MLPERF} data.crop_area data.epoch_end schedule.warmup_start schedule.decay_end"
"""Options in NVIDIA's configuration files and program of MLPerf v0.6."""


def nvidia_v06(
    *, workers: int, images_per_worker: int, epochs: int, peak: float, warmup_epochs: int
) -> ConfigDict:
    """Return an NVIDIA MXNet submission to MLPerf v0.6, with the step numbers of its program.

    Each worker reads its share of the dataset in whole steps, so that an epoch repeats a few
    images. The learning rate of update i, from 1, is peak · i/w for the first w updates, then a
    polynomial of i − w. This is one step ahead of a schedule that counts from 0 (``PolySchedule``
    in common/fit.py).

    Args:
      workers: number of workers (W).
      images_per_worker: images of each worker (n).
      epochs: duration of the schedule.
      peak: peak learning rate.
      warmup_epochs: duration of the warm-up.
    """
    config = mlperf(
        workers=workers,
        images_per_worker=images_per_worker,
        dtype="float16",
        flavour="nvidia",
        length=f"{epochs} epochs",
        peak=peak,
        warmup="1 steps",
        momentum=0.9,
        weight_decay=2e-4,
    )
    steps = -(-(IMAGENET_EXAMPLES // workers) // images_per_worker)  # of an epoch
    config.data.epoch_end = "repeat"
    config.schedule.length = f"{epochs * steps} steps"
    config.schedule.warmup = f"{warmup_epochs * steps - 1} steps"
    config.schedule.warmup_start = peak / (warmup_epochs * steps)
    config.schedule.decay_end = f"{epochs * steps - 1} steps"
    return config


FUJITSU = """
    model.init model.head_deviation norm.momentum norm.epsilon data.epoch_end data.crop_area
    data.crop_ratio data.flip batch.stages optimizer.flavour optimizer.trust_coefficient
    optimizer.epsilon optimizer.momentum optimizer.weight_decay optimizer.trust_skip
    optimizer.decay_skip schedule.peak schedule.decay schedule.power schedule.end
    schedule.weight_decay loss.label_smoothing
"""
"""Options in the parameter file and the code of Fujitsu's MLPerf v0.6 submission, without the batch
and the durations."""


def fujitsu(*, images_per_worker: int, steps_per_epoch: int) -> ConfigDict:
    """Return Fujitsu's run on 2,048 V100.

    The schedule has 36 epochs of warm-up, 52 of decay and 2 at the final rate. The last five epochs
    use centre crops.

    Args:
      images_per_worker: images of each worker (n).
      steps_per_epoch: steps in which each worker reads its 625 images, some of them twice.
    """
    config = imagenet(workers=2048, images_per_worker=images_per_worker, dtype="float16")
    config.model.init = "fan_in"
    config.model.head_deviation = 0.01
    config.data.crop_area = (0.05, 0.9)
    config.data.crop_ratio = (2 / 3, 3 / 2)
    set_fujitsu_training(config, steps_per_epoch=steps_per_epoch)
    # TFDS stores ImageNet in random order, as the record's files did. Class folders are in the
    # order of their classes, where a batch of the unshuffled epochs would hold one class.
    (stage,) = config.batch.stages
    config.batch.stages = (f"{stage} data.shuffle=false",)
    config.run.log_every = "1 steps"
    config.run.layers_every = f"{steps_per_epoch} steps"
    config.run.evaluate_first = "2 epochs"
    config.run.evaluate_every = "4 epochs"
    return config


def set_fujitsu_training(config: ConfigDict, *, steps_per_epoch: int, epochs: int = 90) -> None:
    """Set the optimizer, the schedule, the loss and the crops of the last epochs of `fujitsu`.

    Args:
      config: changed in place.
      steps_per_epoch: steps in which an epoch is read, some of its images twice.
      epochs: length; all other durations keep their share of it.
    """
    steps = epochs * steps_per_epoch
    config.norm.span = 1
    config.norm.momentum = 0.9
    config.data.epoch_end = "repeat"
    last = f"{85 * epochs / 90:g} epochs"
    config.batch.stages = (f"{last}: data.train_crop=centre data.flip=false",)
    config.optimizer.name = "lars"
    config.optimizer.flavour = "fujitsu"
    config.optimizer.trust_coefficient = 0.0025
    config.optimizer.epsilon = 1e-9
    config.optimizer.momentum = 0.96
    config.optimizer.nesterov = False
    config.optimizer.weight_decay = 5e-5
    config.schedule.length = f"{steps} steps"
    config.schedule.peak = 13.0
    config.schedule.warmup = f"{round(36 * steps / 90)} steps"
    config.schedule.decay = "polynomial"
    config.schedule.power = 2.2
    config.schedule.end = 0.0325
    config.schedule.decay_end = f"{round(88 * steps / 90)} steps"
    config.schedule.weight_decay = "follow"
    config.loss.label_smoothing = 0.1


SIAT = """
    batch.workers batch.images_per_worker data.image_size data.crop_area data.evaluation_size
    data.evaluation_crop norm.span norm.gamma norm.epsilon norm.momentum optimizer.name
    optimizer.flavour optimizer.momentum optimizer.weight_decay optimizer.trust_skip
    optimizer.decay_skip schedule.length schedule.peak schedule.warmup schedule.warmup_shape
    schedule.warmup_start schedule.decay loss.label_smoothing model.dtype
"""
"""Options in the logs and scripts of SIAT's open submissions to MLPerf v0.7."""


def siat_open(*, workers: int, length: str, peak: float, warmup: str) -> ConfigDict:
    """Return an open submission of SIAT: 160 pixels, evaluation at 224, cosine warm-up and decay.

    Args:
      workers: number of workers of 32 images each.
      length: duration of the training.
      peak: peak learning rate.
      warmup: duration of the warm-up.
    """
    config = imagenet(workers=workers, images_per_worker=32, dtype="float16")
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
    config.schedule.length = length
    config.schedule.peak = peak
    config.schedule.warmup = warmup
    config.schedule.warmup_shape = "cosine"
    config.schedule.warmup_start = 0.8
    config.schedule.decay = "cosine"
    config.loss.label_smoothing = 0.1
    config.run.evaluate_every = "4 epochs"
    return config
