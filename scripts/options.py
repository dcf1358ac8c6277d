"""Write the generated parts of docs/configuration.md, docs/commands.md and docs/studies.md.

    python scripts/options.py

The reference of options comes from the schema, the table of commands from the text at the top of
each command, the tables of studies from their records.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pages import commands, studies
from pages.markdown import insert
from pages.options import markdown

from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
COMMANDS = ROOT / "docs" / "commands.md"
STUDIES = ROOT / "docs" / "studies.md"


def page(text: str) -> str:
    """Return docs/configuration.md with the reference of all options."""
    return insert(text, {"options": markdown().strip()})


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Rewrite the pages."""
    Parser(__doc__).parse_args(arguments)
    PAGE.write_text(page(PAGE.read_text()))
    COMMANDS.write_text(commands.page(COMMANDS.read_text(), ROOT))
    STUDIES.write_text(studies.page(STUDIES.read_text(), ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
