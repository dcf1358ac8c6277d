"""Schedules of the learning rate, weight decay and momentum from a configuration."""

import dataclasses
import re
from collections.abc import Callable

from largebatch.config import durations
from largebatch.config.registries import OPTIMIZERS
from largebatch.config.schema import Config, value_of
from largebatch.config.values import check, written
from largebatch.errors import ConfigError, shown
from largebatch.optim.adapter import factory_of
from largebatch.optim.lars import LarsSettings, lars_of
from largebatch.optim.schedules import Blend, Points, RateSchedule, Schedule, peak_rate
from largebatch.registry import parse_options

_BLEND_EPOCHS = 10, 5
"""Centre and period of the change from RMSprop to SGD (Akiba et al. 2017, section 2.2)."""
_WITHOUT_PARAMETER = {
    "optimizer.decay_skip": "auto, which decays all parameters",
    "optimizer.weight_decay": "0, or loss.l2 for an L2 term in the loss",
    "schedule.weight_decay": "constant",
}
"""Values of options for optax transformations whose factory has no such parameter."""
_POINT = re.compile(r"(?P<where>[^:]+):\s*(?P<multiple>[0-9.eE+-]+)")


def rates_of(config: Config, *, per_step: int, per_epoch: int, length: int) -> RateSchedule:
    """Return the schedules of all hyperparameters that change during training.

    Args:
      config: the configuration.
      per_step: samples of a step of the first stage.
      per_epoch: samples of an epoch.
      length: samples of the whole training.

    Raises:
      ConfigError: an option is invalid or contradicts another option.
    """
    rule, chosen = config.optimizer, config.schedule
    if rule.name == "lars":
        _check_details(rule.flavour)
    if rule.name not in OPTIMIZERS:
        _check_factory(config)

    def at(name: str, text: str) -> int:
        return durations.samples(
            text, f"schedule.{name}", per_step=per_step, per_epoch=per_epoch, length=length
        )

    warmup, decay_end = at("warmup", chosen.warmup), at("decay_end", chosen.decay_end)
    if warmup >= decay_end:
        raise ConfigError(
            f"schedule.warmup={chosen.warmup!r} ({warmup:,} samples) must end before "
            f"schedule.decay_end={chosen.decay_end!r} of schedule.length={chosen.length!r} "
            f"({decay_end:,} samples); use --config.schedule.warmup='10 %'"
        )
    blend = None
    if rule.name == "rmsprop_sgd":
        epoch = config.run.scale_length * per_epoch
        blend = Blend(*(round(epoch * epochs) for epochs in _BLEND_EPOCHS))
    corrected = False
    if rule.name in OPTIMIZERS and "rate" in OPTIMIZERS[rule.name].options:
        placement = lars_of(rule).rate if rule.name == "lars" else rule.rate
        corrected = placement == "inside_corrected"
    return RateSchedule(
        learning_rate=Schedule(
            peak=peak_rate(peak=chosen.peak, per_256=chosen.per_256, batch=per_step),
            start=chosen.warmup_start,
            warmup=warmup,
            warmup_shape=chosen.warmup_shape,
            decay_end=decay_end,
            decay=chosen.decay,
            power=chosen.power,
            end=chosen.end,
            points=_points(chosen.points, at),
        ),
        weight_decay=rule.weight_decay,
        follows=chosen.weight_decay == "follow",
        # Factories of optax transformations take their momentum from optimizer.options.
        momentum=rule.momentum if rule.name in OPTIMIZERS else 0.0,
        momentum_at_peak=rule.momentum_at_peak or None,
        corrected=corrected,
        blend=blend,
    )


def _points(texts: tuple[str, ...], at: Callable[[str, str], int]) -> Points:
    made = []
    for text in texts:
        match = _POINT.fullmatch(text.strip())
        try:
            made.append((at("points", match["where"]), float(match["multiple"])))
        except (TypeError, ValueError):
            raise ConfigError(
                f"schedule.points: expected DURATION: MULTIPLE of the peak, got {shown(text)}; use "
                "'16 epochs: 0.5'"
            ) from None
    return tuple(made)


def _check_details(flavour: str) -> None:
    """Check the types of the details after the name of a flavour; `lars_settings` does the rest."""
    kinds = {field.name: field.type for field in dataclasses.fields(LarsSettings)}
    for name, value in parse_options(flavour.partition(" ")[2], "optimizer.flavour").items():
        if name in kinds:
            check(kinds[name], value, f"optimizer.flavour: {name}")


def _check_factory(config: Config) -> None:
    """Check that the factory of an optax transformation has parameters for the decay options."""
    rule = config.optimizer
    factory = factory_of(rule.name, parse_options(rule.options))
    used = {
        "optimizer.decay_skip": bool(factory.mask_parameter),
        "optimizer.weight_decay": factory.takes_decay,
        "schedule.weight_decay": factory.takes_decay,
    }
    for key, is_used in used.items():
        value = value_of(config, key)
        if not is_used and value not in (0, value_of(Config(), key)):
            raise ConfigError(
                f"{key}={written(value)}: {rule.name} has no parameter for it; use "
                f"{_WITHOUT_PARAMETER[key]}",
                unused=(key,),
            )
