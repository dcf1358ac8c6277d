"""What a sweep varies: axes, read from the command line or from a recipe's ``sweep()``.

An axis lists values, ``key=a,b,c``, or is a range, ``key=log:LOW:HIGH:N`` or ``key=lin:LOW:HIGH:N``
with a unit behind N for a duration (``schedule.warmup=lin:1:9:5 epochs``). The values of a trial
are texts, as the command line of train.py takes them.
"""

import dataclasses
import inspect
import math
import numbers
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from largebatch.config import Config, options
from largebatch.config.recipe_file import execute
from largebatch.config.values import shown
from largebatch.errors import ConfigError

Choice = dict[str, str]
"""A trial's values: {option: text}."""
MOST_VALUES = 10_000
_RANGE = re.compile(r"(log|lin):(.*)")
_PARTS = re.compile(r"([^:\s]+):([^:\s]+)(?::([0-9]{1,9})(?:\s*(samples|steps|epochs|%))?)?")
_SEPARATOR = re.compile(r",(?![^()\[\]]*[)\]])")
FORM = "write key=a,b,c or key=log:LOW:HIGH:N or key=lin:LOW:HIGH:N"


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included."""

    shape: Literal["log", "lin"]
    low: float
    high: float
    unit: str = ""
    """Of a duration."""
    whole: bool = False

    def at(self, share: float) -> str:
        """The text of what lies this share, of 0 to 1, of the way from low to high."""
        if self.shape == "log":
            number = self.low * (self.high / self.low) ** share
        else:
            number = self.low + share * (self.high - self.low)
        return self.text(number)

    def text(self, number: float) -> str:
        """A number in four digits, or whole, and never out of bounds for that."""
        number = round(number) if self.whole else float(f"{number:.4g}")
        number = min(max(number, self.low), self.high)
        return text(number).removesuffix(".0") + (f" {self.unit}" if self.unit else "")


@dataclasses.dataclass(frozen=True)
class Axis:
    """One direction of a sweep.

    Attributes:
        keys: options that change together; most axes have one.
        points: what a grid visits: for each point the text of each key.
        range: what other searches draw from; None: from ``points``.
    """

    keys: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]
    range: Range | None = None

    @property
    def name(self) -> str:
        """For people and the study."""
        return ",".join(self.keys)

    def at(self, share: float) -> Choice:
        """The values at this share of the axis, at least 0 and below 1."""
        if self.range is not None:
            return {self.keys[0]: self.range.at(share)}
        return self.point(min(int(share * len(self.points)), len(self.points) - 1))

    def point(self, index: int) -> Choice:
        """The values of a point."""
        return dict(zip(self.keys, self.points[index], strict=True))

    def extremes(self) -> tuple[tuple[str, ...], ...]:
        """What has to be valid so that all is: each point, or the bounds."""
        if self.range is None:
            return self.points
        return ((self.range.at(0.0),), (self.range.at(1.0),), *self.points)


def from_text(text: str) -> Axis:
    """An axis as the command line has it.

    Raises:
      ConfigError: it has another form; or a range without a width, or one that cannot be
        logarithmic.
    """
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not key or not values.strip():
        raise ConfigError(f"--sweep {shown(text)} names no values; {FORM}")
    return _axis((key,), values)


def from_recipe(path: Path, config: Config) -> tuple[Axis, ...]:
    """The axes of the ``sweep()`` of a recipe file.

    It returns {option: values}: a list, or a text as on the command line; or {(option, option):
    list of pairs} for options that change together. It may take the configuration that is swept,
    for values that depend on it.

    Args:
      path: the file.
      config: the configuration that is swept.

    Raises:
      ConfigError: it has none, it raises, or it returns something else.
    """
    _, module = execute(path)
    function = getattr(module, "sweep", None)
    if not callable(function):
        raise ConfigError(
            f"{path} has no sweep(); add one beside get_config() that returns {{option: values}}"
        )
    try:
        found = function(config) if inspect.signature(function).parameters else function()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path}: sweep() raised {type(error).__name__}: {shown(str(error))}; mend the file"
        ) from error
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{path}: sweep() returned {shown(found)}; return {{option: values}}")
    return tuple(_of_recipe(path, keys, values) for keys, values in found.items())


def _of_recipe(path: Path, keys: Any, values: Any) -> Axis:
    names = keys if isinstance(keys, tuple) else (keys,)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{path}: sweep() names {shown(keys)}; give options such as schedule.peak"
        )
    if isinstance(values, str) and keys is not names:
        return _axis(names, values)
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{path}: sweep() gives {shown(values)} for {names[0]}; give a list")
    if keys is not names:
        return _listed(names, [(text(value),) for value in values])
    wrong = [v for v in values if not isinstance(v, list | tuple) or len(v) != len(names)]
    if wrong:
        raise ConfigError(
            f"{path}: sweep() gives {shown(wrong[0])} for {','.join(names)}; give {len(names)} "
            "values for each point"
        )
    return _listed(names, [tuple(text(value) for value in point) for point in values])


def text(value: Any) -> str:
    """A value of an option as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "(" + ",".join(text(each) for each in value) + ")"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    return repr(float(value)) if isinstance(value, numbers.Real) else str(value)


def _axis(keys: tuple[str, ...], values: str) -> Axis:
    if match := _RANGE.fullmatch(values.strip()):
        return _ranged(keys, match[1], match[2], values.strip())
    parts = [part.strip() for part in _SEPARATOR.split(values)]
    if not all(parts):
        raise ConfigError(f"{keys[0]}={shown(values)} has an empty value; {FORM}")
    return _listed(keys, [(part,) for part in parts])


def _listed(keys: tuple[str, ...], points: Iterable[tuple[str, ...]]) -> Axis:
    points = tuple(points)
    if len(set(points)) < len(points):
        twice = next(p for p in points if points.count(p) > 1)
        raise ConfigError(f"{','.join(keys)} has the value {', '.join(twice)} twice; drop one")
    return Axis(keys, points)


def _ranged(keys: tuple[str, ...], shape: str, rest: str, said: str) -> Axis:
    parts = _PARTS.fullmatch(rest.strip())
    try:
        low, high = float(parts[1]), float(parts[2])
    except (TypeError, ValueError):
        raise ConfigError(f"{keys[0]}={shown(said)} is no range; {FORM}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{keys[0]}={shown(said)}: LOW must be below HIGH, and both finite")
    if shape == "log" and low <= 0:
        raise ConfigError(f"{keys[0]}={shown(said)}: LOW must be above 0 for log; or use lin")
    count = int(parts[3]) if parts[3] else 0
    if parts[3] and not 2 <= count <= MOST_VALUES:
        raise ConfigError(f"{keys[0]}={shown(said)}: N must be from 2 to {MOST_VALUES}")
    unit = parts[4] or ""
    kind = _kind(keys[0])
    whole = kind is int or int in typing.get_args(kind)
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{keys[0]}={shown(said)}: LOW and HIGH must be whole numbers there")
    if (kind is str) != bool(unit) and kind is not None:
        need = "a unit behind N, such as '5 epochs'" if kind is str else "no unit"
        raise ConfigError(f"{keys[0]}={shown(said)}: this option needs {need}")
    found = Range(typing.cast(Literal["log", "lin"], shape), low, high, unit, whole)
    shares = [index / (count - 1) for index in range(count)]
    return Axis(keys, tuple(dict.fromkeys((found.at(share),) for share in shares)), found)


def _kind(key: str) -> Any:
    """Declared type of an option; None if there is none of this name."""
    return {name: field.type for name, _, field in options(Config())}.get(key)
