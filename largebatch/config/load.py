"""From a recipe file and command-line overrides to one checked, frozen ``Config``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config.durations import ratio, times
from largebatch.config.known_sets import full_source
from largebatch.config.options import replaced
from largebatch.config.recipe_file import execute
from largebatch.config.scaling import scaled
from largebatch.config.schema import Config
from largebatch.config.typed import freeze, override
from largebatch.errors import ConfigError

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
      ConfigError: no such file; it raises; an option is unknown or has a wrong value; or the
        training was shortened and the recipe's warm-up no longer fits into it.
    """
    found, _ = execute(Path(path))
    recipe = freeze(found)
    config = adjusted(recipe, overrides)
    check_length(recipe, config, overrides)
    return config


def adjusted(config: Config, overrides: Sequence[tuple[str, str]]) -> Config:
    """A recipe's configuration with overrides, of which ``run.scale_*`` come first.

    Raises:
      ConfigError: an option is unknown or has a wrong value.
    """
    first = [(key, text) for key, text in overrides if key in _SCALE]
    others = [(key, text) for key, text in overrides if key not in _SCALE]
    config = _with_full_source(config)
    for key, text in first:
        config = override(config, key, text)
    config = scaled(config, config.run.scale_to, length=config.run.scale_length)
    for key, text in others:
        config = override(config, key, text)
    return _with_full_source(config)


def _with_full_source(config: Config) -> Config:
    return replaced(config, {"data.source": full_source(config.data.source)})


def check_length(recipe: Config, config: Config, overrides: Sequence[tuple[str, str]]) -> None:
    """Refuse a shorter training whose other durations stayed the recipe's.

    Only durations in the same unit are compared here; the plan compares the others.

    Args:
      recipe: without overrides.
      config: with them.
      overrides: what was given.

    Raises:
      ConfigError: with arguments that work.
    """
    given = {key for key, _ in overrides}
    if "schedule.length" not in given:
        return
    before = adjusted(recipe, [pair for pair in overrides if pair[0] in _SCALE]).schedule
    after = config.schedule
    factor = ratio(after.length, before.length)
    if not factor:
        return
    places = {"warmup": (after.warmup,), "steps": after.steps, "turn": (after.turn,)}
    for name, texts in places.items():
        key = f"schedule.{name}"
        late = [text for text in texts if (ratio(text, after.length) or 0) >= 1]
        if key in given or not late:
            continue
        own = ""
        if name == "warmup":
            own = f"add --config.{key}={times(after.warmup, factor)!r}, or "
        scale = float(factor) * config.run.scale_length
        raise ConfigError(
            f"{key}={late[0]!r}, which the recipe sets, does not fit into schedule.length="
            f"{after.length!r}; {own}write --config.run.scale_length={scale:.4g} in place of "
            f"schedule.length, which shortens all durations of the recipe alike"
        )
