"""What a sweep varies: axes, read from the command line or a recipe's ``sweep()``, and its trials.

An axis lists values, ``key=a,b,c``, or is a range, ``key=log:LOW:HIGH:N`` or ``key=lin:LOW:HIGH:N``
with a unit after N for a duration (``schedule.warmup=lin:1:9:5 epochs``). The values of a trial
are texts, in the form that the command line of train.py takes.
"""

import dataclasses
import inspect
import itertools
import math
import numbers
import re
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ml_collections import ConfigDict

from largebatch.config import Config, Facts, adjusted, options, override
from largebatch.config.checks import check_ranges
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.recipe_file import execute
from largebatch.config.unused import settled
from largebatch.errors import ConfigError, shown

Values = Mapping[str | tuple[str, ...], list[Any]]
"""What a ``sweep()`` returns: values of an option, or of options that change together."""
Choice = dict[str, str]
"""The values of a trial: {option: text}."""
MOST_TRIALS = 10_000
FORM = "key=a,b,c, key=log:LOW:HIGH:N or key=lin:LOW:HIGH:N"
_PARTS = re.compile(
    r"(log|lin):([^:\s]+):([^:\s]+)(?::([0-9]{1,9})(?:\s*(samples|steps|epochs|%))?)?"
)
_SEPARATOR = re.compile(r",(?![^()\[\]]*[)\]])")


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    shape: Literal["log", "lin"]
    low: float
    high: float
    unit: str = ""
    """The unit of a duration."""
    whole: bool = False

    def at(self, share: float) -> str:
        """Return the text of the number at this share, 0 to 1, of the way from low to high."""
        if self.shape == "log":
            return self.text(self.low * (self.high / self.low) ** share)
        return self.text(self.low + share * (self.high - self.low))

    def text(self, number: float) -> str:
        """Return a number as a text of four digits, or whole, within the bounds."""
        number = round(number) if self.whole else float(f"{number:.4g}")
        number = min(max(number, self.low), self.high)
        return text(number).removesuffix(".0") + (f" {self.unit}" if self.unit else "")


@dataclasses.dataclass(frozen=True)
class Axis:
    """One direction of a sweep.

    Attributes:
        keys: options that change together; most axes have one.
        points: the values of a grid: for each point the text of each key.
        range: what other searches draw from; None: from ``points``.
    """

    keys: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]
    range: Range | None = None

    @property
    def name(self) -> str:
        """The keys, as tables and the study name them."""
        return ",".join(self.keys)

    def __str__(self) -> str:
        found = self.range
        if found is None:
            return f"{self.name}={','.join(map(':'.join, self.points))}"
        count = f":{len(self.points)}" if self.points else ""
        return (
            f"{self.name}={found.shape}:{found.low:g}:{found.high:g}{count} {found.unit}".rstrip()
        )

    def at(self, share: float) -> Choice:
        """Return the values at a share of the axis, at least 0 and below 1."""
        if self.range is not None:
            return {self.keys[0]: self.range.at(share)}
        return self.choice(self.points[min(int(share * len(self.points)), len(self.points) - 1)])

    def choice(self, point: Sequence[str]) -> Choice:
        """Return the values of a point by option."""
        return dict(zip(self.keys, point, strict=True))

    def extremes(self) -> list[Choice]:
        """Return the points and the bounds: if these are valid, so is all between them."""
        bounds = [] if self.range is None else [self.at(0.0), self.at(1.0)]
        return [*bounds, *map(self.choice, self.points)]


def from_text(argument: str) -> Axis:
    """Read an axis from the command line.

    Raises:
      ConfigError: another form; a range that is empty, or logarithmic and not above 0.
    """
    key, _, values = argument.partition("=")
    if not key.strip() or not values.strip():
        raise ConfigError(f"--sweep {shown(argument)}: expected {FORM}")
    return _axis(key.strip(), values.strip())


def from_recipe(path: Path, config: Config) -> list[Axis]:
    """Return the axes of the ``sweep()`` of a recipe file.

    It returns {option: values}: a list, or a text in the form of the command line; or
    {(option, option): list of pairs} for options that change together. If it takes an argument,
    that is the configuration to sweep.

    Raises:
      ConfigError: the file has no ``sweep()``, it raises, or it returns something else.
    """
    _, module = execute(path)
    function = getattr(module, "sweep", None)
    if not callable(function):
        raise ConfigError(f"{path} has no sweep(); add one that returns {{option: values}}")
    try:
        found = function(config) if inspect.signature(function).parameters else function()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path}: sweep() raised {type(error).__name__}: {shown(str(error))}; fix the file"
        ) from error
    form = f"{path}: sweep(): expected {{option: list}} or {{(option, …): list of tuples}}"
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{form}, got {shown(found)}")
    axes = []
    for keys, values in found.items():
        try:
            axes.append(_of_recipe(keys, values))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{form}, got {shown({keys: values})}") from error
    return axes


def _of_recipe(keys: Any, values: Any) -> Axis:
    """Read an entry of the mapping; a TypeError or ValueError if it has another form."""
    if isinstance(keys, str) and isinstance(values, str):
        return _axis(keys, values.strip())
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    points = [(value,) if isinstance(keys, str) else tuple(value) for value in values]
    if not (points and names and all(len(point) == len(names) for point in points)):
        raise ValueError
    return Axis(names, tuple(tuple(map(text, point)) for point in points))


def text(value: Any) -> str:
    """Return the value of an option in the form that the command line takes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "(" + ",".join(map(text, value)) + ")"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    return repr(float(value)) if isinstance(value, numbers.Real) else str(value)


def _axis(key: str, values: str) -> Axis:
    if values.startswith(("log:", "lin:")):
        return _ranged(key, values)
    parts = [part.strip() for part in _SEPARATOR.split(values)]
    if not all(parts):
        raise ConfigError(f"{key}={shown(values)} has an empty value; expected {FORM}")
    return Axis((key,), tuple((part,) for part in parts))


def _ranged(key: str, given: str) -> Axis:
    match = _PARTS.fullmatch(given)
    try:
        shape, low_text, high_text, number, unit = match.groups(default="") if match else ""
        low, high, count = float(low_text), float(high_text), int(number or 0)
    except ValueError:
        raise ConfigError(f"{key}={shown(given)}: expected {FORM}") from None
    kind = {name: field.type for name, _, field in options(Config())}.get(key)
    whole = kind is int or int in typing.get_args(kind)
    requirements = (
        (math.isfinite(low) and math.isfinite(high) and low < high, "finite LOW below HIGH"),
        (shape == "lin" or low > 0, "LOW above 0; use lin"),
        (not number or 2 <= count <= MOST_TRIALS, f"N from 2 to {MOST_TRIALS:,}"),
        (not whole or (low.is_integer() and high.is_integer()), "whole numbers"),
        (kind is not str or unit, "a unit after N for a duration, such as '5 epochs'"),
        (kind in (str, None) or not unit, "no unit for this option"),
    )
    for holds, expected in requirements:
        if not holds:
            raise ConfigError(f"{key}={shown(given)}: expected {expected}")
    found = Range(typing.cast(Literal["log", "lin"], shape), low, high, unit, whole)
    points = dict.fromkeys((found.at(index / (count - 1)),) for index in range(count))
    return Axis((key,), tuple(points), found)


def grid(axes: Sequence[Axis]) -> list[Choice]:
    """Return every combination, the last axis fastest.

    Raises:
      ConfigError: a range without a number of values, or more than 10,000 trials.
    """
    for axis in axes:
        if not axis.points:
            raise ConfigError(
                f"{axis.name}: --search=grid needs a number of values; write :N after the range, "
                "or use --search=quasi or tpe"
            )
    count = math.prod(len(axis.points) for axis in axes)
    if count > MOST_TRIALS:
        raise ConfigError(
            f"--search=grid: expected at most {MOST_TRIALS:,} trials, got {count:,}; use fewer "
            "values, or --search=quasi or tpe with --trials"
        )
    return [
        _joined(axis.choice(point) for axis, point in zip(axes, points, strict=True))
        for points in itertools.product(*(axis.points for axis in axes))
    ]


def quasi(axes: Sequence[Axis], trials: int, seed: int) -> list[Choice]:
    """Return points of a scrambled Sobol sequence; a longer one begins with the same points."""
    from scipy.stats import qmc

    with warnings.catch_warnings():
        # The balance of a power of two is not needed: a sequence may be continued.
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
    """Refuse a sweep of which a trial cannot run, before any trial starts.

    Args:
      recipe: the configuration of the recipe file, before overrides.
      overrides: options of all trials.
      axes: what is swept.
      planned: the trials that are known beforehand.

    Raises:
      ConfigError: an unknown option, a value of a wrong type, an option that is swept twice or
        overridden as well; or a trial, named, that cannot be resolved.
    """
    keys = [key for axis in axes for key in axis.keys]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key} is swept twice; use one --sweep for it")
        if key in dict(overrides):
            raise ConfigError(f"{key} is swept and --config.{key} sets it; drop one of them")
    singles = [choice for axis in axes for choice in axis.extremes()]
    for choice in singles:
        _overridden(recipe, choice)
    for axis in axes:
        chosen = [_overridden(recipe, axis.choice(point)) for point in axis.points]
        for point, config in zip(axis.points, chosen, strict=True):
            if chosen.count(config) > 1:
                raise ConfigError(f"{axis.name} has the value {', '.join(point)} twice; drop one")
    for check_one in (check_ranges, _check_resolved):  # the second imports JAX
        for number, choice in enumerate(planned or singles):
            try:
                given = [*overrides, *choice.items()]
                settled(adjusted(recipe, given), dict(given), check_one, lambda text: None)
            except ConfigError as error:
                described = ", ".join(f"{key}={value}" for key, value in choice.items())
                where = f"trial {number} ({described})" if planned else f"with {described}"
                raise ConfigError(f"{where}: {error}") from error


def _overridden(config: Config, choice: Choice) -> Config:
    for key, value in choice.items():
        config = override(config, key, value)
    return config


def _check_resolved(config: Config) -> None:
    """Refuse what cannot run on one device, if the size of the dataset is known."""
    known = KNOWN_SETS.get(config.data.source)
    if known is not None:
        from largebatch.config.resolution import resolve

        side = config.data.image_size or known.side
        facts = Facts(known.train, known.validation, known.classes, (side, side, 3), devices=1)
        resolve(config, facts)


def _joined(choices: Iterable[Choice]) -> Choice:
    return {key: value for choice in choices for key, value in choice.items()}


def beside(sweep: str, recipe: str = "digits.py") -> ConfigDict:
    """Return the configuration of a recipe in the folder above a sweep, given its ``__file__``."""
    return execute(Path(sweep).parents[1] / recipe)[0]


def peak_of(config: Config) -> float:
    """Return the peak learning rate of a recipe, also where it is given for 256 images."""
    from largebatch.optim.schedules import peak_rate  # imports JAX

    schedule = config.schedule
    return peak_rate(peak=schedule.peak, per_256=schedule.per_256, batch=config.batch.images)


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
