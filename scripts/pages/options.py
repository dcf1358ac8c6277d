"""Generation of the lists of options in docs/configuration.md."""

import dataclasses
import typing
from typing import Any

from largebatch.config.schema import Config, options
from largebatch.config.values import describe


def markdown() -> str:
    """Return Markdown with a list of options for each section of the configuration."""
    kinds = {
        f"{section.name}.{name}": kind
        for section in dataclasses.fields(Config)
        for name, kind in typing.get_type_hints(section.type).items()
    }
    lines: list[str] = []
    current = None
    for key, default, field in options(Config()):
        section, name = key.split(".")
        if section != current:
            current = section
            about = getattr(Config(), section).__doc__.splitlines()[0]
            lines += ["", f"## {section}", "", about, ""]
        marks = "" if field.metadata["mathematics"] else " ≈"
        if per_host := field.metadata["per_host"]:
            marks += f" {per_host} per host"
        values = _values(kinds[key], default, field.metadata["within"])
        lines.append(f"- **`{name}`**{marks} ({values}): {field.metadata['doc']}")
    return "\n".join(lines).strip() + "\n"


def _values(kind: Any, default: Any, within: str | None) -> str:
    """Return the default, and what else is possible where the default does not show it."""
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join([f"`{default}`", *(w for w in typing.get_args(kind) if w != default)])
    mixed = typing.get_origin(kind) is not tuple and not isinstance(default, float | int)
    others = [describe(part) for part in typing.get_args(kind) if part in (int, float) and mixed]
    shown = default if isinstance(default, str) and default else repr(default)
    bounds = (within or "").replace("at least", "≥").replace("above", ">").replace("below", "<")
    return ", ".join(filter(None, (f"`{shown}`", *others, bounds)))
