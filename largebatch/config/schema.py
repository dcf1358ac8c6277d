"""The configuration of a run.

Each option is declared once, in a section. ``mathematics=False`` marks options that change speed,
memory or reporting, but not the numbers that training computes, up to the order of floating-point
sums. Only these options may differ between a checkpoint and the run that resumes from it.
``per_host`` marks options that may differ between the hosts of a run.
"""

import dataclasses
import difflib
import functools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FieldReference

from largebatch.config import values
from largebatch.config.sections import (
    Augment,
    Batch,
    Comm,
    Data,
    Health,
    Loss,
    Model,
    Norm,
    Optimizer,
    Run,
    Schedule,
)
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError, did_you_mean, one_line, shown

_MISSPELLED = 0.85  # least similarity of full names


@dataclasses.dataclass(frozen=True)
class Config:
    """All options of a run, by section."""

    model: Model = dataclasses.field(default_factory=Model)
    norm: Norm = dataclasses.field(default_factory=Norm)
    batch: Batch = dataclasses.field(default_factory=Batch)
    data: Data = dataclasses.field(default_factory=Data)
    augment: Augment = dataclasses.field(default_factory=Augment)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    loss: Loss = dataclasses.field(default_factory=Loss)
    comm: Comm = dataclasses.field(default_factory=Comm)
    run: Run = dataclasses.field(default_factory=Run)
    health: Health = dataclasses.field(default_factory=Health)


def options(config: Config) -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """Yield each option of ``config`` as ('section.key', value, dataclass field)."""
    for section in dataclasses.fields(config):
        chosen = getattr(config, section.name)
        for field in dataclasses.fields(chosen):
            yield f"{section.name}.{field.name}", getattr(chosen, field.name), field


def value_of(config: Config, key: str) -> Any:
    """Return the value of the option ``section.key``."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def changed(config: Config) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    return {key: value for key, value, field in options(config) if value != field.default}


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return ``config`` with new values of the options ``section.key``."""
    for key, value in values.items():
        section, _, name = key.partition(".")
        changed = dataclasses.replace(getattr(config, section), **{name: value})
        config = dataclasses.replace(config, **{section: changed})
    return config


def default_config() -> ConfigDict:
    """Return all options at their defaults, as a mutable ConfigDict for ``get_config()``."""
    # Not type-safe, because an option such as 'auto' may become a number. freeze() checks types.
    return ConfigDict(dataclasses.asdict(Config()), type_safe=False).lock()


def freeze(config: Mapping[str, Any], overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Convert a nested mapping of options to a ``Config``.

    Args:
      config: the options by section, such as the result of a recipe's ``get_config()``. The
        overrides of ``FieldReference`` options are set in it, so that options that depend on these
        references follow.
      overrides: (section.key, text) of the command line; those of other options are not applied.

    Raises:
      ConfigError: a section or an option is unknown (with the nearest known name), or a value has
        the wrong type or is a placeholder without a value.
    """
    for key, text in overrides:
        section, _, name = key.partition(".")
        if _reference(config.get(section), name) is None:
            continue
        value = _read(key, text)
        try:
            config[section][name] = value
        except TypeError as error:
            raise ConfigError(
                f"{key}={shown(text)}: the reference in the recipe has a different type "
                f"({one_line(error)}); use a value of that type"
            ) from error
    sections = typing.get_type_hints(Config)
    built = {}
    for section, chosen in config.items():
        if section not in sections:
            raise ConfigError(
                f"unknown section {shown(section)} in the configuration; "
                f"{did_you_mean(str(section), sections)}"
            )
        if not isinstance(chosen, Mapping | ConfigDict):
            raise ConfigError(
                f"section {section!r}: expected a mapping of options, got {shown(chosen)}; "
                f"set {section}.OPTION"
            )
        keys = {name: f"{section}.{name}" for name in chosen}
        kinds = {name: _kind(key) for name, key in keys.items()}
        found = {name: _value(chosen, name, key) for name, key in keys.items()}
        built[section] = sections[section](
            **{name: values.check(kinds[name], found[name], key) for name, key in keys.items()}
        )
    return Config(**built)


def _reference(chosen: Any, name: str) -> FieldReference | None:
    """Return the ``FieldReference`` of option ``name`` in the section ``chosen``, or None."""
    if not isinstance(chosen, ConfigDict):
        return None
    value = dict(chosen.items(preserve_field_references=True)).get(name)
    return value if isinstance(value, FieldReference) else None


def _value(chosen: Mapping[str, Any] | ConfigDict, name: str, key: str) -> Any:
    """Return the value of an option, after resolving a ``FieldReference``."""
    found = _reference(chosen, name)
    if found is None:
        return chosen[name]
    why = "it is a placeholder"
    try:
        value = found.get()
    except Exception as error:  # raised by arithmetic on placeholders or on other types
        value, why = None, one_line(error)
    if value is None:
        raise ConfigError(
            f"{key} has no value ({why}); use --config.{key}=VALUE, or set it or the option that "
            "it depends on in the recipe"
        )
    return value


def override(config: Config, key: str, text: str) -> Config:
    """Return ``config`` with the option ``section.key`` set to the value of ``text``.

    Raises:
      ConfigError: the option is unknown, or ``text`` is not a value of its type.
    """
    return replaced(config, {key: _read(key, text)})


def _read(key: str, text: str) -> Any:
    return values.read(_kind(key, text), text, key)


def _kind(key: str, text: str = "") -> Any:
    """Return the type of the option ``section.key``; ``text`` is its value, for messages.

    Raises:
      ConfigError: the option is unknown; the message has the full names of similar options.
    """
    if key not in _kinds():
        raise ConfigError(f"unknown option {shown(key)}; {_hint(key, ' '.join(text.split()))}")
    return _kinds()[key]


@functools.cache
def _kinds() -> dict[str, Any]:
    """Return the types of all options by ``section.key``."""
    return {
        f"{section}.{name}": kind
        for section, options_of in typing.get_type_hints(Config).items()
        for name, kind in typing.get_type_hints(options_of).items()
    }


def _hint(key: str, text: str) -> str:
    """Suggest similar options, or the option for a name of a different library."""
    plain = key.removeprefix("--").removeprefix("config.")
    if plain in _kinds():
        return f"use {plain!r}"
    section, _, name = key.rpartition(".")
    near = difflib.get_close_matches(key, _kinds(), n=1, cutoff=_MISSPELLED)
    if not near and section:
        near = [known for known in _kinds() if known.partition(".")[2] == name]
    if not near and (advised := advice(key, text)):
        return advised
    near = near or difflib.get_close_matches(key, _kinds(), n=1)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return "docs/configuration.md lists all options"


def common(config: Config) -> dict[str, Any]:
    """Return the options, or parts of them, that all hosts of a run must share, by 'section.key'.

    Of an option whose path may differ this is SCHEME, or NAME=SCHEME for each of several.
    """
    found = {}
    for key, value, field in options(config):
        match field.metadata["per_host"]:
            case None:
                found[key] = value
            case "path" if isinstance(value, tuple):
                found[key] = tuple(map(_without_path, value))
            case "path":
                found[key] = _without_path(value)
    return found


def _without_path(text: str) -> str:
    name, scheme, colon = re.match(r"([\w.-]+=)?([^:]*)(:?)", text).groups("")
    is_path = not colon and ("/" in scheme or scheme.startswith((".", "~")))
    return name + ("folder" if is_path else scheme)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One option with different values in two configurations."""

    key: str
    stored: Any
    requested: Any
    mathematics: bool
    """Whether the option changes the numbers that training computes."""


def differences(stored: Config, requested: Config) -> tuple[Difference, ...]:
    """Return the options that differ, in the order of the schema."""
    return tuple(
        Difference(key, old, new, field.metadata["mathematics"])
        for (key, old, field), (_, new, _) in zip(options(stored), options(requested), strict=True)
        if old != new
    )


def table(found: Sequence[Difference]) -> str:
    """Format the differences as a table."""
    rows = [("option", "checkpoint", "this run", "mathematics")]
    rows += [
        (d.key, repr(d.stored), repr(d.requested), "changes" if d.mathematics else "same")
        for d in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
