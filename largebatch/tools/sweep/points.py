"""The trials of a sweep that are known beforehand, and the check of all before any begins."""

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence

from largebatch.config import Config, Facts, adjusted, override, resolve
from largebatch.config.checks import check_ranges
from largebatch.config.known_sets import KNOWN_SETS
from largebatch.errors import ConfigError
from largebatch.tools.sweep.space import MOST_VALUES, Axis, Choice


def grid(axes: Sequence[Axis]) -> list[Choice]:
    """Every combination, the last axis fastest.

    Raises:
      ConfigError: a range without a number of values, or more than 10,000 trials.
    """
    for axis in axes:
        if not axis.points:
            raise ConfigError(
                f"{axis.name} is a range without a number of values, which --search=grid needs; "
                "write :N behind it, or use --search=quasi or tpe"
            )
    count = math.prod(len(axis.points) for axis in axes)
    if count > MOST_VALUES:
        raise ConfigError(
            f"the grid has {count:,} trials, more than {MOST_VALUES:,}; use fewer values, or "
            "--search=quasi or tpe with --trials"
        )
    return [
        _joined(axis.point(i) for axis, i in zip(axes, indices, strict=True))
        for indices in itertools.product(*(range(len(axis.points)) for axis in axes))
    ]


def quasi(axes: Sequence[Axis], trials: int, seed: int) -> list[Choice]:
    """Points of a scrambled Sobol sequence, which a longer one begins with as well."""
    from scipy.stats import qmc

    with warnings.catch_warnings():
        # The balance of a power of two is not asked for: the sequence may be prolonged.
        warnings.filterwarnings("ignore", "The balance properties", UserWarning)
        drawn = qmc.Sobol(len(axes), scramble=True, seed=seed).random(trials)
    return [
        _joined(axis.at(float(share)) for axis, share in zip(axes, row, strict=True))
        for row in drawn
    ]


def check(
    recipe: Config,
    overrides: Sequence[tuple[str, str]],
    axes: Sequence[Axis],
    planned: Sequence[Choice],
) -> None:
    """Refuse a sweep of which a trial could not be run, before any is.

    Args:
      recipe: as its file has it, before overrides.
      overrides: for all trials.
      axes: what is swept.
      planned: the trials that are known beforehand.

    Raises:
      ConfigError: an unknown option, a value of a wrong type, an option swept twice or overridden
        as well; or a trial, named, that cannot be resolved.
    """
    keys = [key for axis in axes for key in axis.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key} is swept twice; give one --sweep for it")
        if key in dict(overrides):
            raise ConfigError(f"{key} is swept and --config.{key} sets it; drop one of them")
    for axis in axes:
        for texts in axis.extremes():
            for key, value in zip(axis.keys, texts, strict=True):
                override(recipe, key, value)
    singles = [dict(zip(a.keys, texts, strict=True)) for a in axes for texts in a.extremes()]
    for number, choice in enumerate(planned or singles):
        try:
            runnable(adjusted(recipe, [*overrides, *choice.items()]))
        except ConfigError as error:
            said = ", ".join(f"{key}={value}" for key, value in choice.items())
            where = f"trial {number} ({said})" if planned else f"with {said}"
            raise ConfigError(f"{where}: {error}") from error


def runnable(config: Config) -> None:
    """Refuse what cannot be run on one device, as far as that is known without the data.

    Raises:
      ConfigError: with the option.
    """
    known = KNOWN_SETS.get(config.data.source)
    if known is None:
        check_ranges(config)
        return
    side = config.data.image_size or known.side
    shape = (side, side, 3)
    resolve(config, Facts(known.train, known.validation, known.classes, shape, devices=1))


def _joined(choices: Iterable[Choice]) -> Choice:
    return {key: value for choice in choices for key, value in choice.items()}
