"""Declaration of an option, checks of its values, and parsing of values from the command line."""

import contextlib
import dataclasses
import numbers
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from largebatch.errors import ConfigError, shown

_MOST = 2**63  # files and devices hold integers in 64 bits

Kind = Literal["conv", "fc", "bias", "bn"]
"""Kinds of parameter: convolution kernels, head kernel, head bias, BatchNorm scale and bias."""

Range = Literal["above 0", "at least 0", "at least 0 and below 1"]


PerHost = Literal["value", "path"]
"""What may differ between the hosts of a run: an option's value, or the PATH of SCHEME:PATH."""


def option(
    default: Any,
    doc: str,
    *,
    within: Range | None = None,
    mathematics: bool = True,
    per_host: PerHost | None = None,
) -> Any:
    """Return a dataclass field with documentation.

    Args:
      default: default value.
      doc: description of the option.
      within: allowed range of a number; texts are not checked.
      mathematics: whether the option changes the numbers that training computes.
      per_host: what may differ between the hosts of a run; None: all have the same value.
    """
    metadata = {"doc": doc, "within": within, "mathematics": mathematics, "per_host": per_host}
    return dataclasses.field(default=default, metadata=metadata)


def check(kind: Any, value: Any, key: str) -> Any:
    """Return ``value`` as type ``kind`` of option ``key``; a float option accepts an int.

    Raises:
      ConfigError: the value has the wrong type, is not finite, or is not an allowed word.
    """
    if _is_union(kind):
        plain, words = typing.get_args(kind)
        if not isinstance(value, str):
            return check(plain, value, key)
        if value in typing.get_args(words):
            return value
    elif typing.get_origin(kind) is Literal:
        if isinstance(value, str) and value in typing.get_args(kind):
            return value
    elif typing.get_origin(kind) is tuple:
        (element, _) = typing.get_args(kind)
        if isinstance(value, list | tuple):
            return tuple(check(element, v, key) for v in value)
    elif kind is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:  # also for large integers
                raise ConfigError(f"{key}={shown(value)}: expected a finite number")
            return float(value)
    elif kind is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            if not -_MOST <= value < _MOST:
                raise ConfigError(f"{key}: expected an integer of 64 bits, got a larger one")
            return int(value)
    elif type(value) is kind:
        return value
    raise ConfigError(f"{key}={shown(value)}: expected {describe(kind)}")


def _is_union(kind: Any) -> bool:
    """Return whether a type is one such as ``int | Literal["auto"]``."""
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def read(kind: Any, text: str, key: str) -> Any:
    """Parse a command-line text as a value of type ``kind`` of option ``key``.

    Raises:
      ConfigError: the text is not a value of this type.
    """
    text = text.strip()
    plain = kind
    if _is_union(kind):
        plain, words = typing.get_args(kind)
        if text in typing.get_args(words):
            return text
    if typing.get_origin(plain) is tuple:
        (element, _) = typing.get_args(plain)
        outer = text[1:-1] if text[:1] in "([" and text[-1:] in ")]" else text
        # A comma inside brackets belongs to the element.
        inside = r"[^()]*\)|[^{}]*\}|[^\[\]]*\]"
        found = [part.strip(" '\"") for part in re.split(rf",(?!{inside})", outer)]
        return tuple(read(element, part, key) for part in found if part)
    value: Any = text
    if plain is bool:
        value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    elif plain in (int, float):
        with contextlib.suppress(ValueError):  # also raised for too many digits
            value = plain(text)
    return check(kind, value, key)


def written(value: Any) -> str:
    """Format a value of an option for the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "'" + ",".join(map(str, value)) + "'"
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(value)


def any_of(words: Sequence[str]) -> str:
    """Join words as a choice: 'a, b or c'."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def describe(kind: Any) -> str:
    """Describe a type for messages and documentation."""
    if typing.get_origin(kind) is Literal:
        return any_of([repr(word) for word in typing.get_args(kind)])
    if _is_union(kind):
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[kind]
