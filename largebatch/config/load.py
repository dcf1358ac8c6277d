"""Loading of a recipe file with overrides as a frozen ``Config``."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from largebatch.config.durations import absolute, rescaled
from largebatch.config.facts import KNOWN_SETS, full_source
from largebatch.config.recipe_file import execute
from largebatch.config.scaling import scaled
from largebatch.config.schema import (
    Config,
    differences,
    freeze,
    options,
    override,
    replaced,
    value_of,
)
from largebatch.config.stages import KEY
from largebatch.config.unused import ignore_unused
from largebatch.config.values import written

_SCALE = ("run.scale_to", "run.scale_length")
_DIGITS = 4  # of durations that shrink, and of rates
_POSITIONS = (KEY, "run.evaluate_first")  # durations outside of the schedule that shrink with it


def load(
    path: str | Path,
    overrides: Sequence[tuple[str, str]] = (),
    note: Callable[[str], None] = lambda text: None,
) -> Config:
    """Execute the recipe at ``path`` and apply ``overrides`` such as ('run.seed', '3').

    A recipe is a Python file with a ``get_config()`` that returns a modified ``default_config()``.

    Args:
      path: a file or a name in ``configs/``; ``RECIPE:ARGUMENT`` calls ``get_config("ARGUMENT")``.
      overrides: (section.key, text); later overrides take precedence.
      note: called with a line for what `adjusted` changes in the recipe.

    Raises:
      ConfigError: the file does not exist or raises an exception; an option is unknown or has an
        invalid value; or an override has no effect.
    """
    found, _ = execute(Path(path))
    return adjusted(freeze(found, overrides), overrides, note)


def adjusted(
    recipe: Config,
    overrides: Sequence[tuple[str, str]],
    note: Callable[[str], None] = lambda text: None,
) -> Config:
    """Apply overrides to a recipe's configuration; first ``run.scale_*``, then all others.

    Then the recipe yields to them: its options without effect get their defaults, and its durations
    shrink with ``schedule.length``.

    Args:
      recipe: the recipe's configuration.
      overrides: (section.key, text).
      note: called with a line for the options that were ignored, and one for those that shrank.

    Raises:
      ConfigError: an option is unknown, has an invalid value, or is given without effect.
    """
    given = {key for key, _ in overrides}
    recipe = _with_full_source(recipe)
    for key, text in overrides:
        if key in _SCALE:
            recipe = override(recipe, key, text)
    recipe = scaled(recipe, recipe.run.scale_to, length=recipe.run.scale_length)
    config = recipe
    for key, text in overrides:
        if key not in _SCALE:
            config = override(config, key, text)
    config, ignored = ignore_unused(_with_full_source(config), given)
    if ignored:
        described = (
            f"{key}={written(value_of(recipe, key))} ({why})" for key, why in ignored.items()
        )
        note(f"options of the recipe without effect are ignored: {', '.join(described)}")
    fitted = _fitted(recipe, config, given)
    if fitted != config:
        changes = (f"{d.key}={written(d.requested)}" for d in differences(config, fitted))
        note(f"the recipe's schedule is adjusted to the options given: {', '.join(changes)}")
    return fitted


def _with_full_source(config: Config) -> Config:
    return replaced(config, {"data.source": full_source(config.data.source)})


def _fitted(recipe: Config, config: Config, given: Collection[str]) -> Config:
    """Fit what the recipe sets in its schedule to the length and the peak that the user gave.

    Args:
      recipe: the recipe's configuration, after scaling.
      config: the configuration with the options that the user gave.
      given: these options.
    """
    changes: dict[str, Any] = {}
    shorter = _shorter(recipe, config)
    for key, value, _ in options(config):
        shrinks = key in _POSITIONS or key.partition(".")[0] == "schedule"
        if key in (*given, "schedule.length") or not shrinks:
            continue
        if isinstance(value, str):
            changes[key] = rescaled(value, shorter, _DIGITS)
        elif isinstance(value, tuple):
            changes[key] = tuple(rescaled(text, shorter, _DIGITS) for text in value)
    before, after = _peak(recipe), _peak(config)
    for key in ("schedule.warmup_start", "schedule.end"):
        rate = getattr(config.schedule, key.partition(".")[2])
        if key not in given and before > after > 0 and rate > after:
            changes[key] = float(f"{rate / before * after:.{_DIGITS}g}")
    return replaced(config, changes)


def _shorter(recipe: Config, config: Config) -> dict[str, tuple[float, str]]:
    """Return how durations change, for `rescaled`, to keep their share of a shorter training."""
    lengths = absolute(recipe.schedule.length), absolute(config.schedule.length)
    if None in lengths or not lengths[0][0]:  # an error of schedule.length itself
        return {}
    (length, unit), (new_length, new_unit) = lengths
    known = [KNOWN_SETS.get(each.data.source) for each in (recipe, config)]
    if not all(known):
        if (unit == "epoch") != (new_unit == "epoch"):
            return {unit: (float(100 / length), "%")}
        known = []
    epochs = [each.train for each in known] or [1, 1]
    before, after = (
        {"sample": 1, "step": max(1, each.batch.images), "epoch": epoch}
        for each, epoch in zip((recipe, config), epochs, strict=True)
    )
    share = new_length * after[new_unit] / (length * before[unit])
    if not 0 < share < 1:
        return {}
    return {each: (float(share * before[each] / after[each]), each) for each in before}


def _peak(config: Config) -> float:
    """Return a number in proportion to the peak learning rate."""
    return config.schedule.peak or config.schedule.per_256 * config.batch.images / 256
