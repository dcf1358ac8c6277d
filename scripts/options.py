"""Write the reference of all options into docs/configuration.md.

python scripts/options.py
"""

import sys
from pathlib import Path

from largebatch.config.reference import markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- written by scripts/options.py -->\n"


def page(text: str) -> str:
    """The page with its reference brought up to date."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + markdown()


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
