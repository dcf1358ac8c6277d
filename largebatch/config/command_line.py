"""Overrides ``--config.section.key=value`` on the command line."""

from collections.abc import Sequence

from largebatch.config.values import shown
from largebatch.errors import ConfigError

_PREFIX = "--config."


def split(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split command-line arguments into overrides and other arguments.

    Returns:
      (section.key, text) of each ``--config.section.key=value`` or ``--config.section.key value``;
      and the other arguments.

    Raises:
      ConfigError: an override has no value.
    """
    pairs, others, rest = [], [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith(_PREFIX):
            others.append(argument)
            continue
        key, equals, text = argument.removeprefix(_PREFIX).partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                said = shown(argument)[1:-1]
                raise ConfigError(f"{said} has no value; use {said}=VALUE")
            text = rest.pop(0)
        pairs.append((key, text))
    return pairs, others


def overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return the overrides of a command line that has no other arguments.

    Raises:
      ConfigError: an argument is not an override, or has no value.
    """
    pairs, others = split(arguments)
    if others:
        raise ConfigError(
            f"unknown argument {shown(others[0])}; options are written "
            "--config.section.key=value, flags are listed by --help"
        )
    return pairs
