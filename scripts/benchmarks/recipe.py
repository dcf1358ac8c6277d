"""What a recipe asks of the input."""

import argparse
import math

from benchmarks.doctor import Need, need_in_time, need_of_devices
from largebatch.config import Config, durations, load
from largebatch.data.open import open_source
from largebatch.errors import ConfigError, DataError

_NUMBERS = ("target_s", "device_images_per_s", "devices_per_host", "examples")


def need_of(flags: argparse.Namespace) -> Need:
    """The need that --config and its companions describe.

    Raises:
        ConfigError: Neither a time nor a device's rate is given, or both, or one is not positive.
        DataError: The number of examples is not given and the recipe's source cannot be opened.
    """
    device = (flags.device_images_per_s, flags.devices_per_host)
    given = [name for name in _NUMBERS if getattr(flags, name) is not None]
    for name in given:
        if not getattr(flags, name) > 0:
            raise ConfigError(f"--{name} is {getattr(flags, name)}; give a number above 0")
    if (flags.target_s is None) == (device == (None, None)) or device.count(None) == 1:
        raise ConfigError(
            "--config: give either --target_s, or --device_images_per_s and --devices_per_host"
        )
    if flags.target_s is None:
        return need_of_devices(*device, flags.hosts)
    config = load(flags.config)
    samples = training_samples(config, flags.examples or training_examples(config))
    return need_in_time(samples, flags.target_s, flags.hosts)


def training_samples(config: Config, examples: int) -> int:
    """Training images of the whole run, in whole steps."""
    batch = config.batch.workers * config.batch.images_per_worker
    epoch = durations.epoch_samples(examples, batch, config.data.epoch_end)
    length = durations.samples(
        config.schedule.length, "schedule.length", per_step=batch, per_epoch=epoch
    )
    return math.ceil(length / batch) * batch


def training_examples(config: Config) -> int:
    """Examples of the recipe's training split."""
    try:
        return len(open_source(config, "train"))
    except DataError as error:
        raise DataError(f"{error}; or give --examples") from error
