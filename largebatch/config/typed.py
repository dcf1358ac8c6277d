"""Conversion of mappings and command-line texts to typed options."""

import difflib
import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, FieldReference

from largebatch.config import values
from largebatch.config.schema import Config, options, replaced
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError, did_you_mean, one_line

_FEW = 3  # options in a hint
_MISSPELLED = 0.85  # least similarity of names with their sections
_ALIKE = 0.6  # least similarity of names without sections


def freeze(config: Mapping[str, Any]) -> Config:
    """Convert a nested mapping of options to a ``Config``.

    Raises:
      ConfigError: a section or an option is unknown (with the nearest known name), or a value has
        the wrong type.
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
                f"section {section!r}: expected a mapping of options, got {values.shown(chosen)}; "
                f"set {section}.OPTION"
            )
        known = _fields(sections[section])
        for key in chosen:
            if key not in known:
                raise ConfigError(unknown_option(f"{section}.{key}"))
        found = {key: _value(chosen, key, f"{section}.{key}") for key in chosen}
        built[section] = sections[section](
            **{key: values.check(known[key], v, f"{section}.{key}") for key, v in found.items()}
        )
    return Config(**built)


def override(config: Config, key: str, text: str) -> Config:
    """Return ``config`` with the option ``section.key`` set to the value of ``text``.

    Raises:
      ConfigError: the option is unknown, or ``text`` is not a value of its type.
    """
    return replaced(config, {key: read(key, text)})


def read(key: str, text: str) -> Any:
    """Parse ``text`` as a value of the option ``section.key``.

    Raises:
      ConfigError: the option is unknown, or ``text`` is not a value of its type.
    """
    section, _, name = key.partition(".")
    known = _fields(_fields(Config).get(section, object))
    if name not in known:
        raise ConfigError(unknown_option(key, text))
    return values.read(known[name], text, key)


def reference(chosen: Any, name: str) -> FieldReference | None:
    """Return the ``FieldReference`` of option ``name`` in the section ``chosen``, or None."""
    if not isinstance(chosen, ConfigDict):
        return None
    value = dict(chosen.items(preserve_field_references=True)).get(name)
    return value if isinstance(value, FieldReference) else None


def _value(chosen: Mapping[str, Any] | ConfigDict, name: str, key: str) -> Any:
    """Return the value of an option, after resolving a ``FieldReference``."""
    found = reference(chosen, name)
    if found is None:
        return chosen[name]
    try:
        value = found.get()
    except Exception as error:  # raised by arithmetic on placeholders or on other types
        raise ConfigError(
            f"{key}: its reference has no value ({one_line(error)}); set the options that it "
            "depends on, in the recipe or on the command line"
        ) from error
    if value is None:
        raise ConfigError(
            f"{key} has no value, because it is or depends on a placeholder; use "
            f"--config.{key}=VALUE, or set it in the recipe"
        )
    return value


def unknown_option(key: str, text: str = "") -> str:
    """Return the message for an unknown option, with the full names of similar options.

    Args:
      key: the unknown option.
      text: its value; empty if there is none.
    """
    known = [option for option, _, _ in options(Config())]
    plain = key.removeprefix("--").removeprefix("config.")
    hint = f"use {plain!r}" if plain in known else _hint(key, " ".join(text.split()))
    return f"unknown option {values.shown(key)}; {hint}"


def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _hint(key: str, text: str) -> str:
    """Suggest similar options, or the option for a name of a different library."""
    names = [known for known, _, _ in options(Config())]
    section, _, name = key.rpartition(".")
    same = [known for known in names if known.rpartition(".")[2] == name]
    near = difflib.get_close_matches(key, names, n=_FEW, cutoff=_MISSPELLED) or (section and same)
    if not near and (advised := advice(key, text)):
        return advised
    near = near or same or difflib.get_close_matches(key, names, n=_FEW, cutoff=_ALIKE)
    if not near:
        last = {known.rpartition(".")[2]: known for known in names}
        close = difflib.get_close_matches(name, last, n=1, cutoff=_ALIKE)
        near = [last[each] for each in close]
    if near:
        return f"did you mean {' or '.join(map(repr, near[:_FEW]))}?"
    return "docs/configuration.md lists all options"
