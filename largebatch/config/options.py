"""Iteration over the options of a configuration, and replacement of their values."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from largebatch.config.schema import Config


def options(config: Config) -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """Yield each option of ``config`` as ('section.key', value, dataclass field)."""
    for section in dataclasses.fields(config):
        chosen = getattr(config, section.name)
        for field in dataclasses.fields(chosen):
            yield f"{section.name}.{field.name}", getattr(chosen, field.name), field


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
