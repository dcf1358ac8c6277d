"""A recipe for ImageNet, shrunk to a data set that a laptop or one node trains in minutes.

The ratio of the batch to the data set is kept, so that an epoch has as many steps and the schedule
its shape; so are workers' spans, stages and every option of the update rule but the height of the
learning rate. Rules without trust ratios follow the linear scaling rule (Goyal et al. 2017, arXiv
1706.02677, section 2.1) to the smaller batch: their steps grow with the gradients, and the rate of
8,192 images makes a batch of 16 diverge. Where the number of devices is known, workers are rounded
to a multiple of it. What a shrunk recipe shows is that it runs and how it behaves, not its
published accuracy.
"""

import dataclasses
import math
import re
from typing import Literal

from largebatch.config import values
from largebatch.config.checks import check_ranges
from largebatch.config.durations import epoch_samples
from largebatch.config.known_sets import KNOWN_SETS
from largebatch.config.models import DEPTHS
from largebatch.config.options import options, replaced
from largebatch.config.schema import Config
from largebatch.config.stages import KEY, split_stage, stages_of
from largebatch.errors import ConfigError

Scale = Literal["full", "node", "laptop"]


@dataclasses.dataclass(frozen=True)
class _Target:
    """What a recipe is shrunk to."""

    source: str
    examples: int
    images_per_worker: int | None
    """At least, in all stages: BatchNorm learns nothing from two images of 1×1 at its last layers.
    None keeps about the recipe's, or fewer where ``devices`` want more workers."""
    devices: int
    """Workers are a multiple of this."""
    side: int | None
    """Pixels that 224 become; smaller and larger sizes become one less and one more, so that
    programs differ and digits stay legible. None keeps sizes."""
    rate: float
    """Factor of learning rates of rules with trust ratios, and of RMSprop."""
    layer_step: float
    """Most that LARS may move a layer in a step at the peak, as a share of its norm: peak times
    trust coefficient."""
    least_batch: int
    """Fewer images leave BatchNorm nothing to average."""
    changes: dict[str, object]


_TARGETS = {
    "laptop": _Target(
        source="digits",
        examples=1_437,
        images_per_worker=4,
        devices=1,
        side=8,
        rate=0.25,  # gradients of so few images are noisy
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
            # It makes up for random crops, of which the digits have none.
            "data.evaluation_size": 0,
        },
    ),
    "node": _Target(
        source="folder:imagenette2-320",
        examples=9_469,
        images_per_worker=None,
        devices=8,
        side=None,
        rate=1.0,  # not tried yet
        layer_step=math.inf,
        least_batch=64,
        changes={},
    ),
}
_TRUST_RATIOS = ("lars", "lamb")
"""Optimizers whose steps do not grow with the gradients' norms."""
_SIZES = ("data.image_size", "data.evaluation_size")
_USUAL_SIDE = 224
_DURATION = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(samples?|steps?|epochs?)")


def scaled(config: Config, to: Scale, *, length: float = 1.0) -> Config:
    """The configuration shrunk to ``to``.

    Args:
      config: of a recipe for a data set of `KNOWN_SETS`.
      to: ``laptop``: the digits and a ResNet-10 of width 8; ``node``: Imagenette and the recipe's
        own network; ``full``: the configuration as it is.
      length: factor of all durations.

    Raises:
      ConfigError: the recipe is for another data set, or one of its numbers is out of range.
    """
    shrunk: dict[str, object] = {}
    epochs = {}
    if to != "full":
        if config.data.source not in KNOWN_SETS:
            raise ConfigError(
                f"run.scale_to={to} shrinks recipes for {', '.join(KNOWN_SETS)}, and data.source "
                f"is {config.data.source}; use run.scale_to=full"
            )
        check_ranges(config)
        examples, batch = KNOWN_SETS[config.data.source].train, config.batch.images
        shrunk = _shrunk(config, _TARGETS[to], examples)
        epoch = epoch_samples(examples, batch, config.data.epoch_end)
        epochs = {"sample": 1 / epoch, "step": batch / epoch}

    def shorter(text: str) -> str:
        def one(match: re.Match) -> str:
            amount, unit = float(match[1].replace("_", "")) * length, match[2].rstrip("s")
            if unit in epochs:  # steps and samples of another batch and data set
                amount, unit = amount * epochs[unit], "epoch"
            return (f"{amount:.9f}".rstrip("0").rstrip(".") or "0") + f" {unit}s"

        return _DURATION.sub(one, text)

    durations = {}
    for key, value, _ in options(replaced(config, shrunk)):
        if key != KEY and key.partition(".")[0] not in ("schedule", "run"):
            continue
        if isinstance(value, str):
            durations[key] = shorter(value)
        elif isinstance(value, tuple):
            durations[key] = tuple(shorter(text) for text in value)
    return replaced(config, shrunk | durations)


def divided(config: Config, devices: int) -> Config:
    """Return a shrunk configuration whose workers the devices share evenly.

    The number of workers is rounded to the nearest multiple of ``devices`` (and of the span), half
    way upwards, and is at least one multiple; other options stay. A configuration with
    ``run.scale_to=full`` is returned as it is.
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
    """What changes but durations."""
    if KNOWN_SETS[config.data.source] == KNOWN_SETS[target.source]:
        return {}
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
        "norm.momentum_samples": round(
            config.norm.momentum_samples * workers * images / config.batch.images
        ),
        **target.changes,
    }
    if config.model.name not in DEPTHS:  # it stays, and decides these by itself
        for key in ("model.name", "model.width", "model.stem"):
            changes.pop(key, None)
    for key, value, _ in options(config):
        if key in _SIZES and key not in target.changes:
            changes[key] = _side(value, target)
        elif key == KEY:
            changes[key] = tuple(_stage(text, config, images, workers, target) for text in value)
    # These import JAX, which a recipe that is not shrunk can do without.
    from largebatch.optim.flavours import lars_of
    from largebatch.optim.schedules import peak_rate

    schedule = config.schedule
    # Of the batch that it was for.
    peak = peak_rate(
        peak=schedule.peak,
        per_256=schedule.per_256,
        batch=config.batch.images,
        scaling=schedule.scaling,
    )
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
    """The text of a stage with its own sizes shrunk as the first stage's were."""
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
