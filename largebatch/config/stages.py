"""Stages of a training, which change the batch size, image size or augmentation.

A stage is a text such as '30 epochs: batch.images_per_worker=32 rate=1.7': the duration before the
stage, and new values of options. Changes by earlier stages remain in force. ``rate`` multiplies the
learning rate.
"""

import math
import re
from typing import NamedTuple

from largebatch.config.schema import Config, override
from largebatch.errors import ConfigError, did_you_mean, shown

KEY = "batch.stages"
RATE = "rate"
MAY_CHANGE = (
    "batch.workers",
    "batch.images_per_worker",
    "batch.microbatch",
    "norm.span",
    "data.image_size",
    "data.shuffle",
    "data.shift",
    "data.train_crop",
    "data.crop_area",
    "data.crop_ratio",
    "data.flip",
    "augment.policy",
    "augment.mixup",
    "augment.cutmix",
    "augment.erase",
    "data.evaluation_size",
    "data.evaluation_crop",
    "data.rectangular",
)
_BLANKS = re.compile(r"\s+(?![^()]*\))")  # outside parentheses
_FORM = re.compile(r"(?P<begin>[^:]+):\s*(?P<changes>\S.*)")


class StageConfig(NamedTuple):
    """The options of one stage."""

    begin: str
    """Duration from the start of the training; empty for the first stage."""
    config: Config
    """Configuration with the changes of this and earlier stages."""
    rate: float = 1.0
    """Learning rate factor."""


def stages_of(config: Config) -> tuple[StageConfig, ...]:
    """Return the stages of a configuration; the first stage is the configuration itself.

    Raises:
      ConfigError: a text is not a stage, or changes an option that stages cannot change.
    """
    stages = [StageConfig("", config)]
    for text in config.batch.stages:
        stages.append(_read(stages[-1], text))
    return tuple(stages)


def split_stage(text: str) -> tuple[str, list[str]]:
    """Split the text of a stage into its begin and its changes, each 'option=value'.

    Raises:
      ConfigError: the text is not a stage.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{KEY}: expected DURATION: OPTION=VALUE, got {shown(text)}; use "
            "'30 epochs: batch.images_per_worker=32 rate=1.7'"
        )
    return match["begin"].strip(), _BLANKS.split(match["changes"].strip())


def _read(before: StageConfig, text: str) -> StageConfig:
    begin, changes = split_stage(text)
    config, rate = before.config, before.rate
    for change in changes:
        key, equals, value = change.partition("=")
        if key not in (RATE, *MAY_CHANGE):
            raise ConfigError(
                f"{KEY}: {shown(key)} in {shown(text)} cannot change between stages; "
                f"{did_you_mean(key, (RATE, *MAY_CHANGE))}"
            )
        if not equals:
            raise ConfigError(
                f"{KEY}: {shown(change)} in {shown(text)} has no value; use {key}=VALUE"
            )
        if key != RATE:
            config = override(config, key, value)
            continue
        try:
            rate = float(value)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise ConfigError(f"{KEY}: expected a rate above 0, got {shown(text)}")
    return StageConfig(begin, config, rate)
