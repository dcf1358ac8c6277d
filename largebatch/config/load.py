"""Loading of a recipe file with overrides as a frozen ``Config``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.config.durations import ratio, times
from largebatch.config.facts import full_source
from largebatch.config.recipe_file import execute
from largebatch.config.scaling import scaled
from largebatch.config.schema import Config, replaced
from largebatch.config.typed import freeze, override, read, reference
from largebatch.config.values import shown
from largebatch.errors import ConfigError, one_line

_SCALE = ("run.scale_to", "run.scale_length")


def default_config() -> ConfigDict:
    """Return all options at their defaults, as a mutable ConfigDict for ``get_config()``."""
    # Not type-safe, because an option such as 'auto' may become a number. freeze() checks types.
    return ConfigDict(dataclasses.asdict(Config()), type_safe=False).lock()


def load(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Execute the recipe at ``path`` and apply ``overrides`` such as ('run.seed', '3').

    A recipe is a Python file with a ``get_config()`` that returns a modified ``default_config()``.

    Args:
      path: a file or a name in ``configs/``; ``RECIPE:ARGUMENT`` calls ``get_config("ARGUMENT")``.
      overrides: (section.key, text); later overrides take precedence.

    Raises:
      ConfigError: the file does not exist or raises an exception; an option is unknown or has an
        invalid value; or the warm-up of the recipe does not fit into a shortened training.
    """
    found, _ = execute(Path(path))
    recipe = frozen(found, overrides)
    config = adjusted(recipe, overrides)
    check_length(recipe, config, overrides)
    return config


def frozen(found: Mapping[str, Any], overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Convert the result of ``get_config()`` to a ``Config``.

    Args:
      found: the result of the recipe. The function sets overrides of ``FieldReference`` options in
        it, so that options that depend on these references follow.
      overrides: of the command line. All other overrides are ignored here.

    Raises:
      ConfigError: an option is unknown or invalid, or is a placeholder without a value.
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
                    f"{key}={shown(text)}: the reference in the recipe has a different type "
                    f"({one_line(error)}); use a value of that type"
                ) from error
    return freeze(found)


def adjusted(config: Config, overrides: Sequence[tuple[str, str]]) -> Config:
    """Apply overrides to a recipe's configuration; first ``run.scale_*``, then all others.

    Raises:
      ConfigError: an option is unknown or has an invalid value.
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
    """Check that the recipe's other durations fit into an overridden ``schedule.length``.

    This function compares only durations in the same unit. The plan compares the others.

    Args:
      recipe: configuration without overrides.
      config: configuration with overrides.
      overrides: of the command line.

    Raises:
      ConfigError: a duration does not fit; the message has arguments that work.
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
            f"{key}={late[0]!r} of the recipe does not fit into schedule.length="
            f"{after.length!r}; {own}use --config.run.scale_length={scale:.4g} instead of "
            "schedule.length, which shortens all durations of the recipe"
        )
