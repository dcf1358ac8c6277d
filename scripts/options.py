"""Write what docs/ says of every option and every command.

    python scripts/options.py

The reference in docs/configuration.md comes from the schema, the table in docs/commands.md from
the text at the top of each command.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.config.reference import markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
COMMANDS = ROOT / "docs" / "commands.md"
BEGIN = "<!-- written by scripts/options.py -->\n"


def page(text: str) -> str:
    """The page with its reference brought up to date."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + markdown()


def main(arguments: Sequence[str]) -> int:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.parse_args(arguments)
    from pages import commands  # beside this script, when it is run as one

    PAGE.write_text(page(PAGE.read_text()))
    COMMANDS.write_text(commands.page(COMMANDS.read_text(), ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
