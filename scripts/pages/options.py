"""Generation of the option tables in docs/configuration.md."""

import dataclasses
import typing

from largebatch.config.schema import Config, options
from largebatch.config.values import describe


def markdown() -> str:
    """Return Markdown with a table of options for each section of the configuration."""
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
            lines += ["| option | type | default | meaning | effect |", "|---|---|---|---|---|"]
        effect = "" if field.metadata["mathematics"] else "same mathematics"
        if per_host := field.metadata["per_host"]:
            effect = ", ".join(filter(None, (effect, f"{per_host} per host")))
        kind = ", ".join(filter(None, (describe(kinds[key]), field.metadata["within"])))
        cells = (f"`{name}`", kind, f"`{default!r}`", field.metadata["doc"], effect)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip() + "\n"
