"""``--config.section.key=value`` on a command line."""

from collections.abc import Sequence

from largebatch.config.values import shown
from largebatch.errors import ConfigError

_PREFIX = "--config."


def overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The (section.key, text) pairs of ``--config.section.key=value``, or with a space for ``=``.

    Raises:
      ConfigError: an argument of another form, or one without a value.
    """
    pairs, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith(_PREFIX):
            raise ConfigError(
                f"unknown argument {shown(argument)}; options are written "
                "--config.section.key=value, flags are listed by --help"
            )
        key, equals, text = argument.removeprefix(_PREFIX).partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                said = shown(argument)[1:-1]
                raise ConfigError(f"{said} has no value; write {said}=VALUE")
            text = rest.pop(0)
        pairs.append((key, text))
    return pairs
