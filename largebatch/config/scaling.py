"""Scaling of an ImageNet recipe to a dataset that a laptop or one node trains in minutes.

Scaling keeps the ratio of batch size to dataset size. Therefore the number of steps per epoch and
the shape of the schedule stay the same. Spans, stages and the update rule stay too, except for the
peak learning rate. Update rules without trust ratios use the linear scaling rule (Goyal et al.
2017, arXiv 1706.02677, section 2.1): the learning rate for a batch of 8,192 images makes a batch of
16 diverge. If the number of devices is known, the number of workers becomes a multiple of it. A
scaled recipe shows that the recipe runs and how it behaves, but not its published accuracy.
"""

import dataclasses
import math
from typing import Literal

from largebatch.config import values
from largebatch.config.checks import check_ranges
from largebatch.config.durations import epoch_samples, rescaled
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.registries import DEPTHS
from largebatch.config.schema import Config, options, replaced
from largebatch.config.stages import KEY, split_stage, stages_of
from largebatch.errors import ConfigError

Scale = Literal["full", "node", "laptop"]


@dataclasses.dataclass(frozen=True)
class _Target:
    """Dataset, network and limits for a scaled recipe."""

    source: str
    examples: int
    images_per_worker: int | None
    """Minimum in all stages, because BatchNorm cannot use two images of 1×1 in its last layers.
    None: about the value of the recipe, or less if ``devices`` requires more workers."""
    devices: int
    """The number of workers is a multiple of this."""
    side: int | None
    """Image size that replaces 224; smaller and larger sizes become one pixel less and one pixel
    more, so that the compiled programs differ. None: keep all sizes."""
    rate: float
    """Learning rate factor for rules with trust ratios and for RMSprop."""
    layer_step: float
    """Maximum change of a layer in a LARS step, relative to its norm: peak times trust
    coefficient."""
    least_batch: int
    """Minimum global batch, because BatchNorm needs enough images for its statistics."""
    changes: dict[str, object]


_TARGETS = {
    "laptop": _Target(
        source="digits",
        examples=1_437,
        images_per_worker=4,
        devices=1,
        side=8,
        rate=0.25,  # gradients of small batches are noisy
        layer_step=0.0125,
        least_batch=16,
        changes={
            "model.name": "resnet10",
            "model.width": 8,
            "model.stem": "small",
            "model.dtype": "float32",
            "comm.wire": "float32",
            "comm.bucket_mib": 0.05,
            "data.flip": False,
            "data.evaluation_size": 0,  # only useful with random crops, which digits do not have
        },
    ),
    "node": _Target(
        source="folder:imagenette2-320",
        examples=9_469,
        images_per_worker=None,
        devices=8,
        side=None,
        rate=1.0,  # not validated
        layer_step=math.inf,
        least_batch=64,
        changes={},
    ),
}
_TRUST_RATIOS = ("lars", "lamb")
"""Optimizers with a step size that does not depend on the norm of the gradient."""
_SIZES = ("data.image_size", "data.evaluation_size")
_USUAL_SIDE = 224


def scaled(config: Config, to: Scale, *, length: float = 1.0) -> Config:
    """Scale a configuration to the target ``to``.

    Args:
      config: of a recipe for a dataset in `KNOWN_SETS`.
      to: ``laptop``: digits and a ResNet-10 of width 8; ``node``: Imagenette and the network of
        the recipe; ``full``: no change.
      length: factor of all durations.

    Raises:
      ConfigError: the recipe is for a different dataset or for that of the target, or one of its
        values is out of range.
    """
    shrunk: dict[str, object] = {}
    changes = {unit: (length, unit) for unit in ("sample", "step", "epoch")}
    if to != "full":
        target = _TARGETS[to]
        known = KNOWN_SETS.get(config.data.source)
        if known is None or known == KNOWN_SETS[target.source]:
            raise ConfigError(
                f"run.scale_to={to}: expected data.source of a larger dataset of known size "
                f"({', '.join(KNOWN_SETS)}), got {config.data.source}; use run.scale_to=full"
            )
        check_ranges(config)
        shrunk = _shrunk(config, target, known.train)
        # Steps and samples depend on the batch and the dataset.
        epoch = epoch_samples(known.train, config.batch.images, config.data.epoch_end)
        changes["sample"] = (length / epoch, "epoch")
        changes["step"] = (length * config.batch.images / epoch, "epoch")
    durations = {}
    for key, value, _ in options(replaced(config, shrunk)):
        if key != KEY and key.partition(".")[0] not in ("schedule", "run"):
            continue
        if isinstance(value, str):
            durations[key] = rescaled(value, changes)
        elif isinstance(value, tuple):
            durations[key] = tuple(rescaled(text, changes) for text in value)
    return replaced(config, shrunk | durations)


def divided(config: Config, devices: int) -> Config:
    """Round the number of workers of a scaled configuration to a multiple of ``devices``.

    The result is also a multiple of the span and at least one multiple; ties round up. A
    configuration with ``run.scale_to=full`` does not change.
    """
    if config.run.scale_to == "full":
        return config

    def rounded(workers: int, span: int | str) -> int:
        unit = devices if span == "all" else math.lcm(devices, span)
        return max(1, math.floor(workers / unit + 0.5)) * unit

    first = before = rounded(config.batch.workers, config.norm.span)
    texts = []
    for text, stage in zip(config.batch.stages, stages_of(config)[1:], strict=True):
        begin, changes = split_stage(text)
        changes = [change for change in changes if not change.startswith("batch.workers=")]
        workers = rounded(stage.config.batch.workers, stage.config.norm.span)
        if workers != before or not changes:
            changes.insert(0, f"batch.workers={workers}")
        before = workers
        texts.append(f"{begin}: {' '.join(changes)}")
    return replaced(config, {"batch.workers": first, KEY: tuple(texts)})


def _shrunk(config: Config, target: _Target, examples: int) -> dict[str, object]:
    """Return the new values of all options that are not durations."""
    wanted = max(target.least_batch, config.batch.images * target.examples / examples)
    unit, span = target.devices, config.norm.span
    most = target.images_per_worker or config.batch.images_per_worker
    workers = unit * math.ceil(max(1, round(wanted / most)) / unit)
    if isinstance(span, int) and span > 1:
        span = min(span, workers)
        unit = math.lcm(unit, span)
        workers = max(1, round(workers / unit)) * unit
    images = target.images_per_worker or max(1, round(wanted / workers))
    changes: dict[str, object] = {
        "data.source": target.source,
        "batch.workers": workers,
        "batch.images_per_worker": images,
        "norm.span": span,
        **target.changes,
    }
    if config.model.name not in DEPTHS:  # a user's own network stays
        for key in ("model.name", "model.width", "model.stem"):
            changes.pop(key, None)
    for key, value, _ in options(config):
        if key in _SIZES and key not in target.changes:
            changes[key] = _side(value, target)
        elif key == KEY:
            changes[key] = tuple(_stage(text, config, images, workers, target) for text in value)
    # These modules import JAX, which only scaled recipes need.
    from largebatch.optim.lars import lars_of
    from largebatch.optim.schedules import peak_rate

    schedule = config.schedule
    batch = config.batch.images
    peak = peak_rate(peak=schedule.peak, per_256=schedule.per_256, batch=batch)
    rate = target.rate
    if config.optimizer.name == "lars":
        rate = min(rate, target.layer_step / (peak * lars_of(config.optimizer).trust_coefficient))
    elif config.optimizer.name not in _TRUST_RATIOS:
        rate = min(rate, workers * images / config.batch.images)
    changes |= {"schedule.peak": peak * rate, "schedule.per_256": 0.0}
    for key in ("end", "warmup_start"):
        changes[f"schedule.{key}"] = getattr(schedule, key) * rate
    if config.optimizer.name == "rmsprop_sgd":
        changes["optimizer.rmsprop_rate"] = config.optimizer.rmsprop_rate * target.rate
    return changes


def _side(size: int, target: _Target) -> int:
    if not size or target.side is None:
        return size
    return target.side + (size > _USUAL_SIDE) - (size < _USUAL_SIDE)


def _stage(text: str, config: Config, images: int, workers: int, target: _Target) -> str:
    """Scale the sizes in the text of a stage by the factors of the first stage."""
    begin, changes = split_stage(text)
    parts = []
    for change in changes:
        key, _, value = change.partition("=")
        if key in target.changes:
            value = target.changes[key]
        elif key in ("batch.images_per_worker", "batch.workers", *_SIZES):
            size = values.read(int, value, f"{KEY}: {key}")
            if key == "batch.images_per_worker":
                value = round(size * images / config.batch.images_per_worker)
                value = max(target.images_per_worker or 1, value)
            elif key == "batch.workers":
                value = max(1, round(size * workers / config.batch.workers))
            else:
                value = _side(size, target)
        parts.append(f"{key}={value}")
    return f"{begin}: {' '.join(parts)}"
