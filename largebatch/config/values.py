"""One typed value: checking it, and reading it from a command line."""

import ast
import numbers
import re
import sys
import types
import typing
from typing import Any, Literal

from largebatch.errors import ConfigError, did_you_mean


def check(kind: Any, value: Any, key: str) -> Any:
    """Return ``value`` as the type ``kind`` of option ``key``; an int will do for a float.

    Raises:
      ConfigError: the value has another type, is not finite, or is none of the allowed words.
    """
    if typing.get_origin(kind) is Literal:
        words = typing.get_args(kind)
        if value in words and isinstance(value, str):
            return value
        hint = (
            did_you_mean(value, words) if isinstance(value, str) else f"known: {', '.join(words)}"
        )
        raise ConfigError(f"{key}={value!r} is not one of {', '.join(words)}; {hint}")
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        plain, words = typing.get_args(kind)
        listed = typing.get_origin(plain) is tuple and value not in typing.get_args(words)
        return check(words if isinstance(value, str) and not listed else plain, value, key)
    if typing.get_origin(kind) is tuple:
        (element, _) = typing.get_args(kind)
        if isinstance(value, list | tuple):
            return tuple(check(element, v, key) for v in value)
    elif kind is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:  # an integer may exceed it too
                raise ConfigError(f"{key} is not a finite number; give one")
            return float(value)
    elif kind is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
    elif type(value) is kind:
        return value
    raise ConfigError(f"{key}={value!r} is not {describe(kind)}; give {describe(kind)}")


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
                f"{key}={text!r} is not {describe(kind)}; give one of these"
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
        raise ConfigError(f"{key}={text!r} is neither true nor false")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(
            f"{key}={text!r} is not {describe(kind)}; give {describe(kind)}"
        ) from None
    return check(kind, value, key)


def describe(kind: Any) -> str:
    """The type in words, for a message."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(repr(word) for word in typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
