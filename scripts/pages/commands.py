"""The table of docs/commands.md, from the text at the top of each command."""

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from pages.markdown import insert, table


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


def page(text: str, root: Path) -> str:
    """Return docs/commands.md with the table of the commands under a root."""
    rows = [
        (f"`{each.name}`", each.summary) for each in (command(path, root) for path in paths(root))
    ]
    return insert(text, {"commands": table(("command", "purpose"), rows)})
