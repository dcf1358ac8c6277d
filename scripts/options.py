"""Write the generated tables of docs/: options, commands, recipes.

    python scripts/options.py

The reference of options comes from the schema, the table of commands from the text at the top of
each command, the tables of recipes from configs/.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pages import tables

from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Rewrite the pages."""
    Parser(__doc__).parse_args(arguments)
    for path, text in tables.pages(ROOT).items():
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
