"""From a recipe file and command-line overrides to one checked, frozen ``Config``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config.recipe_file import execute
from largebatch.config.scaling import scaled
from largebatch.config.schema import Config
from largebatch.config.typed import freeze, override

_SCALE = ("run.scale_to", "run.scale_length")


def default_config() -> ConfigDict:
    """Every option at its default, for a recipe's ``get_config()`` to change."""
    # Not type-safe here: an option such as 'auto' or a number changes its type lawfully; freeze()
    # checks each value against the schema.
    return ConfigDict(dataclasses.asdict(Config()), type_safe=False).lock()


def load(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Read the recipe file at ``path`` and apply ``overrides`` such as ('run.seed', '3').

    The file is Python with a ``get_config()`` that returns ``default_config()`` changed.

    Raises:
      ConfigError: no such file; it raises; or an option is unknown or has a wrong value.
    """
    found, _ = execute(Path(path))
    return adjusted(freeze(found), overrides)


def adjusted(config: Config, overrides: Sequence[tuple[str, str]]) -> Config:
    """A recipe's configuration with overrides, of which ``run.scale_*`` come first.

    Raises:
      ConfigError: an option is unknown or has a wrong value.
    """
    first = [(key, text) for key, text in overrides if key in _SCALE]
    others = [(key, text) for key, text in overrides if key not in _SCALE]
    for key, text in first:
        config = override(config, key, text)
    config = scaled(config, config.run.scale_to, length=config.run.scale_length)
    for key, text in others:
        config = override(config, key, text)
    return config
