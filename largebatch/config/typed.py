"""From names and values, or texts, to typed options."""

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FieldReference

from largebatch.config import values
from largebatch.config.options import options, replaced
from largebatch.config.schema import Config
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError, did_you_mean, one_line

_FEW = 3  # options that a hint names
_MISSPELLED = 0.85  # the same for a name with its section
_ALIKE = 0.6  # how much a name must resemble another to be taken for it


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
                raise ConfigError(unknown_option(f"{section}.{key}"))
        found = {key: _value(chosen, key, f"{section}.{key}") for key in chosen}
        built[section] = sections[section](
            **{key: values.check(known[key], v, f"{section}.{key}") for key, v in found.items()}
        )
    return Config(**built)


def override(config: Config, key: str, text: str) -> Config:
    """``config`` with the option ``section.key`` read from ``text``.

    Raises:
      ConfigError: an unknown option, or a text that does not read as its type.
    """
    return replaced(config, {key: read(key, text)})


def read(key: str, text: str) -> Any:
    """Return the value that ``text`` stands for, of the option ``section.key``.

    Raises:
      ConfigError: as of `override`.
    """
    section, _, name = key.partition(".")
    known = _fields(_fields(Config).get(section, object))
    if name not in known:
        raise ConfigError(unknown_option(key, text))
    return values.read(known[name], text, key)


def reference(chosen: Any, name: str) -> FieldReference | None:
    """Return the reference that an option of a section holds, or None.

    Args:
      chosen: the section.
      name: of the option.
    """
    if not isinstance(chosen, ConfigDict):
        return None
    value = dict(chosen.items(preserve_field_references=True)).get(name)
    return value if isinstance(value, FieldReference) else None


def _value(chosen: Mapping[str, Any] | ConfigDict, name: str, key: str) -> Any:
    """The value of an option, of what it refers to if it is a reference."""
    found = reference(chosen, name)
    if found is None:
        return chosen[name]
    try:
        value = found.get()
    except Exception as error:  # of arithmetic on what has no value, or has another type
        raise ConfigError(
            f"{key}: its reference has no value ({one_line(error)}); set what it depends on "
            "in the recipe or on the command line"
        ) from error
    if value is None:
        raise ConfigError(
            f"{key} has no value: it is a placeholder, or computed from one; use "
            f"--config.{key}=VALUE, or set it in the recipe"
        )
    return value


def unknown_option(key: str, text: str = "") -> str:
    """The message for an option that does not exist, with the full names of the nearest ones.

    Args:
      key: the option as it was written.
      text: its value as it was written; empty where there is none.
    """
    return f"unknown option {values.shown(key)}; {_hint(key, ' '.join(text.split()))}"


def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _hint(key: str, text: str) -> str:
    """What to write: an option here, or one for a word of other libraries."""
    names = [known for known, _, _ in options(Config())]
    section, _, name = key.rpartition(".")
    said = advice(key, text)
    same = [known for known in names if known.rpartition(".")[2] == name]
    misspelled = difflib.get_close_matches(key, names, n=1, cutoff=_MISSPELLED)
    if misspelled or (section and any(known not in said for known in same)):
        return _question(misspelled or same)
    return said or _nearest(key)


def _question(names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, names[:_FEW]))}?"


def _nearest(key: str) -> str:
    """The options of this name or one spelled like it, those of the same section first."""
    names = [known for known, _, _ in options(Config())]
    section, _, name = key.rpartition(".")
    last = {known: known.rpartition(".")[2] for known in names}
    inside = [known for known in names if known.startswith(f"{section or name}.")]
    for among in (inside, names):
        near = difflib.get_close_matches(name, {last[n] for n in among}, n=1, cutoff=_ALIKE)
        if found := [known for known in among if last[known] in near]:
            return _question(found)
    near = difflib.get_close_matches(key, inside or names, n=_FEW, cutoff=0.0)
    return f"nearest: {', '.join(near)}; docs/configuration.md lists all options"
