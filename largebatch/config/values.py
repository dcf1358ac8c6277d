"""One typed value: checking it, and reading it from a command line."""

import contextlib
import numbers
import re
import sys
import types
import typing
from typing import Any, Literal

from largebatch.errors import ConfigError, did_you_mean

_MOST = 2**63  # whole numbers travel to places where they have 64 bits
_SHOWN = 200


def check(kind: Any, value: Any, key: str) -> Any:
    """Return ``value`` as the type ``kind`` of option ``key``; an int will do for a float.

    Raises:
      ConfigError: the value has another type, is not finite, or is none of the allowed words.
    """
    if typing.get_origin(kind) is Literal:
        words = typing.get_args(kind)
        if isinstance(value, str) and value in words:
            return value
        hint = (
            did_you_mean(value, words) if isinstance(value, str) else f"known: {', '.join(words)}"
        )
        raise ConfigError(f"{key}={shown(value)} is not one of {', '.join(words)}; {hint}")
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        plain, words = typing.get_args(kind)
        a_word = isinstance(value, str) and (
            typing.get_origin(plain) is not tuple or value in typing.get_args(words)
        )
        return check(words if a_word else plain, value, key)
    if typing.get_origin(kind) is tuple:
        (element, _) = typing.get_args(kind)
        if isinstance(value, list | tuple):
            return tuple(check(element, v, key) for v in value)
    elif kind is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:  # an integer may exceed it too
                raise ConfigError(f"{key}={shown(value)} is not a finite number; give one")
            return float(value)
    elif kind is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            if not -_MOST <= value < _MOST:
                raise ConfigError(f"{key} is too large a number; give one of 64 bits")
            return int(value)
    elif type(value) is kind:
        return value
    raise ConfigError(f"{key}={shown(value)} is not {describe(kind)}; give {describe(kind)}")


def read(kind: Any, text: str, key: str) -> Any:
    """The value of type ``kind`` that the command-line text of option ``key`` stands for.

    Raises:
      ConfigError: the text does not read as that type.
    """
    text = text.strip()
    if typing.get_origin(kind) is Literal:
        return check(kind, text, key)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        plain, words = typing.get_args(kind)
        if text in typing.get_args(words):
            return text
        try:
            return read(plain, text, key)
        except ConfigError:
            if typing.get_origin(plain) is tuple:  # its message says which element is wrong
                raise
            raise ConfigError(
                f"{key}={shown(text)} is not {describe(kind)}; give one of these"
            ) from None
    if typing.get_origin(kind) is tuple:
        (element, _) = typing.get_args(kind)
        outer = text[1:-1] if text[:1] in "([" and text[-1:] in ")]" else text
        # A comma inside of parentheses belongs to the element.
        parts = [part.strip(" '\"") for part in re.split(r",(?![^()]*\))", outer)]
        return tuple(read(element, part, key) for part in parts if part)
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        raise ConfigError(f"{key}={shown(text)} is neither true nor false")
    value: Any = text
    with contextlib.suppress(ValueError):  # also for more digits than Python reads
        value = kind(text)
    return check(kind, value, key)


def shown(value: Any) -> str:
    """A value of unknown kind and size, for a message: on one line, and cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever the value's own code raises, also for more digits than are shown
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def describe(kind: Any) -> str:
    """The type in words, for a message."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(repr(word) for word in typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
