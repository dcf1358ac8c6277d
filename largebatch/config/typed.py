"""From names and values, or texts, to typed options."""

import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from largebatch.config import values
from largebatch.config.options import options, replaced
from largebatch.config.schema import Config
from largebatch.errors import ConfigError, did_you_mean


def freeze(config: Mapping[str, Any]) -> Config:
    """The typed form of a nested mapping of options.

    Raises:
      ConfigError: an unknown section or key (with the nearest known one), or a value of a wrong
      type.
    """
    sections = _fields(Config)
    built = {}
    for section, chosen in config.items():
        if section not in sections:
            raise ConfigError(
                f"unknown section {values.shown(section)} in the configuration; "
                f"{did_you_mean(str(section), sections)}"
            )
        if not isinstance(chosen, Mapping | ConfigDict):
            raise ConfigError(
                f"section {section!r} is {values.shown(chosen)}; give its options by name"
            )
        known = _fields(sections[section])
        for key in chosen:
            if key not in known:
                raise ConfigError(_unknown(section, str(key)))
        built[section] = sections[section](
            **{key: values.check(known[key], v, f"{section}.{key}") for key, v in chosen.items()}
        )
    return Config(**built)


def override(config: Config, key: str, text: str) -> Config:
    """``config`` with the option ``section.key`` read from ``text``."""
    section, dot, name = key.partition(".")
    sections = _fields(Config)
    if section not in sections:
        raise ConfigError(
            f"unknown option {values.shown(key)}; "
            + _nearest_option(key, did_you_mean(section, sections))
        )
    known = _fields(sections[section])
    if not dot or name not in known:
        raise ConfigError(_unknown(section, name))
    return replaced(config, {key: values.read(known[name], text, key)})


def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unknown(section: str, key: str) -> str:
    known = _fields(_fields(Config)[section])
    hint = _nearest_option(f"{section}.{key}", did_you_mean(key, known))
    return f"unknown option {values.shown(f'{section}.{key}')}; {hint}"


def _nearest_option(key: str, otherwise: str) -> str:
    """A hint at the option whose last name is the one given, in whatever section it stands."""
    name = key.rpartition(".")[2]
    same = [known for known, _, _ in options(Config()) if known.rpartition(".")[2] == name]
    return f"did you mean {same[0]!r}?" if same else otherwise
