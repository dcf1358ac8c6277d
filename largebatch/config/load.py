"""From a recipe file and command-line overrides to one checked, frozen ``Config``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.config.durations import ratio, times
from largebatch.config.known_sets import full_source
from largebatch.config.options import replaced
from largebatch.config.recipe_file import execute
from largebatch.config.scaling import scaled
from largebatch.config.schema import Config
from largebatch.config.typed import freeze, override, read, reference
from largebatch.config.values import shown
from largebatch.errors import ConfigError, one_line

_SCALE = ("run.scale_to", "run.scale_length")


def default_config() -> ConfigDict:
    """Every option at its default, for a recipe's ``get_config()`` to change."""
    # Not type-safe here: an option such as 'auto' or a number changes its type lawfully; freeze()
    # checks each value against the schema.
    return ConfigDict(dataclasses.asdict(Config()), type_safe=False).lock()


def load(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Read the recipe file at ``path`` and apply ``overrides`` such as ('run.seed', '3').

    The file is Python with a ``get_config()`` that returns ``default_config()`` changed.

    Args:
      path: a file or a name in ``configs/``; ``RECIPE:ARGUMENT`` calls ``get_config("ARGUMENT")``.
      overrides: (section.key, text), later ones over earlier ones.

    Raises:
      ConfigError: no such file; it raises; an option is unknown or has a wrong value; or the
        training was shortened and the recipe's warm-up no longer fits into it.
    """
    found, _ = execute(Path(path))
    recipe = frozen(found, overrides)
    config = adjusted(recipe, overrides)
    check_length(recipe, config, overrides)
    return config


def frozen(found: Mapping[str, Any], overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Return the typed form of what a recipe returned.

    Args:
      found: the recipe's configuration. Overrides of options that are ``FieldReference`` are set
        in it, as ml_collections does, so that everything that refers to them follows.
      overrides: what the command line gives; other options in it are not looked at.

    Raises:
      ConfigError: an option is unknown, has a wrong value, or is a placeholder without one.
    """
    for key, text in overrides:
        section, _, name = key.partition(".")
        chosen = found.get(section)
        if reference(chosen, name) is not None:
            value = read(key, text)
            try:
                chosen[name] = value
            except TypeError as error:
                raise ConfigError(
                    f"{key}={shown(text)}: the recipe's reference takes another type "
                    f"({one_line(error)}); give a value of that type"
                ) from error
    return freeze(found)


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
