"""The configuration of a run.

Each option is declared once, in a section. ``mathematics=False`` marks options that change speed,
memory or reporting, but not the numbers that training computes, up to the order of floating-point
sums. Only these options may differ between a checkpoint and the run that resumes from it.
``per_host`` marks options that may differ between the hosts of a run.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
