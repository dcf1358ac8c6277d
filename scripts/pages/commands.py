"""The table of docs/commands.md, from the text at the top of each command."""

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from pages.markdown import table

BEGIN = "<!-- written by scripts/options.py -->\n"
END = "<!-- end -->\n"


@dataclass(frozen=True)
class Command:
    """A script that users run.

    Attributes:
        name: its path from the root of the repository.
        summary: what it is for, one sentence.
        examples: commands that can be pasted, each one line.
    """

    name: str
    summary: str
    examples: tuple[str, ...]


def paths(root: Path) -> list[Path]:
    """Every file that is run by its path: `train.py`, and those of `scripts/` with a `main`."""
    scripts = sorted((root / "scripts").glob("*.py"))
    return [
        root / "train.py",
        *(path for path in scripts if '__name__ == "__main__"' in path.read_text()),
    ]


def command(path: Path, root: Path) -> Command:
    """What a command says of itself; nothing is imported.

    Raises:
        ValueError: its docstring is not a summary and an indented example.
    """
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    summary, _, rest = said.partition("\n\n")
    indented = re.search(r"(?:^    .*\n?)+", rest, re.MULTILINE)
    joined = re.sub(r"\\\n\s*", "", textwrap.dedent(indented[0])) if indented else ""
    examples = tuple(line for line in joined.splitlines() if line.startswith("python "))
    if not summary or not examples:
        raise ValueError(f"{path} has no summary or no example in its docstring")
    return Command(str(path.relative_to(root)), " ".join(summary.split()), examples)


def page(text: str, root: Path) -> str:
    """The page with its table brought up to date.

    Args:
        text: the page as it is.
        root: of the repository.
    """
    rows = [
        (f"`{each.name}`", each.summary, f"`{each.examples[0]}`")
        for each in (command(path, root) for path in paths(root))
    ]
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(('command', 'what for', 'example'), rows)}\n\n{END}{after}"
