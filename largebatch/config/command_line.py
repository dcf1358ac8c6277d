"""``--config.section.key=value`` on a command line."""

from collections.abc import Sequence

from largebatch.config.values import shown
from largebatch.errors import ConfigError

_PREFIX = "--config."


def split(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options among the words of a command line, and the words that are none.

    Returns:
      (section.key, text) of each ``--config.section.key=value``, also with a space for ``=``; and
      the other words.

    Raises:
      ConfigError: an option without a value.
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
                raise ConfigError(f"{said} has no value; write {said}=VALUE")
            text = rest.pop(0)
        pairs.append((key, text))
    return pairs, others


def overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The options of a command line that holds nothing else.

    Raises:
      ConfigError: an argument of another form, or one without a value.
    """
    pairs, others = split(arguments)
    if others:
        raise ConfigError(
            f"unknown argument {shown(others[0])}; options are written "
            "--config.section.key=value, flags are listed by --help"
        )
    return pairs
