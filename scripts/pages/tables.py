"""The tables of docs/ that are generated: options, commands, recipes.

A generated block of a page lies between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import ast
import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from largebatch.config.recipes import TAGS, Recipe, all_recipes
from largebatch.config.schema import Config, options
from largebatch.config.values import describe
from largebatch.planning import ladder
from largebatch.tools import recipe_text

_BLOCK = re.compile(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_RATES = ("peak LR", "warm-up", "momentum", "weight decay")


def pages(root: Path) -> dict[Path, str]:
    """Return the text of each page with generated blocks, made from the code under a root."""
    docs = root / "docs"
    makers = {
        "configuration.md": lambda text: insert(text, {"options": option_tables().strip()}),
        "commands.md": lambda text: commands_page(text, root),
        "recipes.md": lambda text: recipes_page(text, all_recipes(root / "configs")),
    }
    return {docs / name: make((docs / name).read_text()) for name, make in makers.items()}


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def insert(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with its generated blocks replaced; all else is written by hand.

    Raises:
      ValueError: the page does not have exactly these blocks.
    """
    found = [name for name, _ in _BLOCK.findall(page)]
    if sorted(found) != sorted(blocks):
        raise ValueError(f"the page has the blocks {sorted(found)}, expected {sorted(blocks)}")
    return _BLOCK.sub(
        lambda m: f"<!-- generated: {m[1]} -->\n\n{blocks[m[1]]}\n\n<!-- end -->", page
    )


@dataclass(frozen=True)
class Command:
    """A script that users run.

    Attributes:
        name: its path from the root of the repository.
        summary: its purpose, one sentence.
        examples: commands that can be pasted, each one line.
    """

    name: str
    summary: str
    examples: tuple[str, ...]


def paths(root: Path) -> list[Path]:
    """Return every file that is run by its path: `train.py`, and `scripts/*.py` with a `main`."""
    scripts = sorted((root / "scripts").glob("*.py"))
    main = [path for path in scripts if '__name__ == "__main__"' in path.read_text()]
    return [root / "train.py", *main]


def command(path: Path, root: Path) -> Command:
    """Read a command's docstring; nothing is imported.

    Raises:
        ValueError: the docstring is not a summary and an indented example.
    """
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    summary, _, rest = text.partition("\n\n")
    indented = re.search(r"(?:^    .*\n?)+", rest, re.MULTILINE)
    joined = re.sub(r"\\\n\s*", "", textwrap.dedent(indented[0])) if indented else ""
    examples = tuple(line for line in joined.splitlines() if line.startswith("python "))
    if not summary or not examples:
        raise ValueError(f"{path} has no summary or no example in its docstring")
    return Command(str(path.relative_to(root)), " ".join(summary.split()), examples)


def commands_page(text: str, root: Path) -> str:
    """Return docs/commands.md with the table of the commands under a root."""
    rows = [
        (f"`{each.name}`", each.summary) for each in (command(path, root) for path in paths(root))
    ]
    return insert(text, {"commands": table(("command", "purpose"), rows)})


def option_tables() -> str:
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


def recipes_page(text: str, recipes: Sequence[Recipe]) -> str:
    """Return docs/recipes.md with the tables of these recipes."""
    points = [
        (
            f"{point.batch:,}",
            f"{point.peak:g}",
            f"{point.warmup_epochs:g}",
            f"{point.momentum:g}",
            f"{point.weight_decay:g}",
            f"{point.epochs:g} ± {point.spread:g}",
        )
        for point in ladder.POINTS
    ]
    blocks = {
        "recipes": table(recipe_text.HEADINGS, recipe_text.listing(recipes)),
        "tags": table(("tag", "meaning"), TAGS.items()),
        "points": table(("batch", *_RATES, "epochs"), points),
    }
    return insert(text, blocks)
