"""What recipes with a ``sweep()`` share: values around those of the recipe to sweep."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.config.recipe_file import execute

Values = Mapping[str | tuple[str, ...], list[Any]]


def beside(sweep: str, recipe: str = "digits.py") -> ConfigDict:
    """Return the configuration of a recipe in the folder above a sweep, given its ``__file__``."""
    return execute(Path(sweep).parents[1] / recipe)[0]


def peak_of(config: Config) -> float:
    """Return the peak learning rate of a recipe, also where it is given for 256 images."""
    from largebatch.optim.schedules import peak_rate  # imports JAX

    schedule = config.schedule
    return peak_rate(
        peak=schedule.peak,
        per_256=schedule.per_256,
        batch=config.batch.images,
    )


def with_peak(config: Config, keys: tuple[str, ...], points: Iterable[tuple[Any, ...]]) -> Values:
    """Return options that change together with the peak rate, the last value of each point.

    A rate that the recipe gives for 256 images is set to 0.
    """
    per_256 = {"schedule.per_256": 0.0} if config.schedule.per_256 else {}
    found = [(*values, rounded(rate), *per_256.values()) for *values, rate in points]
    return {(*keys, "schedule.peak", *per_256): list(dict.fromkeys(found))}


def rounded(number: float) -> float:
    """Return a number in four digits."""
    return float(f"{number:.4g}")
