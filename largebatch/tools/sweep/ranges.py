"""What sweeps of ``configs/sweeps`` share: values around those of the recipe that is swept."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.config.recipe_file import execute
from largebatch.optim.schedules import peak_rate

Values = Mapping[str | tuple[str, ...], list[Any]]


def beside(sweep: str, recipe: str = "digits.py") -> ConfigDict:
    """The configuration of a recipe in the folder above that of a sweep, given its ``__file__``."""
    return execute(Path(sweep).parents[1] / recipe)[0]


def peak_of(config: Config) -> float:
    """The peak learning rate of a recipe, however it is given."""
    schedule = config.schedule
    return peak_rate(
        peak=schedule.peak,
        per_256=schedule.per_256,
        batch=config.batch.images,
        scaling=schedule.scaling,
    )


def peaks(config: Config, rates: Iterable[float]) -> Values:
    """Peak rates as values of a sweep."""
    return with_peak(config, (), [(rate,) for rate in rates])


def with_peak(config: Config, keys: tuple[str, ...], points: Iterable[tuple[Any, ...]]) -> Values:
    """Options that change together with the peak rate, the last value of each point.

    Where the recipe gives a rate for 256 images, that makes room for it.
    """
    room = {"schedule.per_256": 0.0} if config.schedule.per_256 else {}
    made = [(*values, rounded(rate), *room.values()) for *values, rate in points]
    return {(*keys, "schedule.peak", *room): list(dict.fromkeys(made))}


def rounded(number: float) -> float:
    """In four digits."""
    return float(f"{number:.4g}")
