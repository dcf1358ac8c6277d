"""Write what docs/ says of every option and every command.

    python scripts/options.py

The reference in docs/configuration.md comes from the schema, the table in docs/commands.md from
the text at the top of each command.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.config.reference import markdown
from largebatch.fault_tolerance import exit_code

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
COMMANDS = ROOT / "docs" / "commands.md"
BEGIN = "<!-- written by scripts/options.py -->\n"


def page(text: str) -> str:
    """The page with its reference brought up to date."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + markdown()


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Rewrite the pages."""
    Parser(__doc__).parse_args(arguments)
    from pages import commands  # beside this script, when it is run as one

    PAGE.write_text(page(PAGE.read_text()))
    COMMANDS.write_text(commands.page(COMMANDS.read_text(), ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
