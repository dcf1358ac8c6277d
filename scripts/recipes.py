"""List the recipes, show one with the source of each value, or propose one for another batch.

    python scripts/recipes.py
    python scripts/recipes.py fujitsu2019_81920
    python scripts/recipes.py --batch 40000

--write_docs writes docs/recipes.md, --write_golden the resolved texts that the tests compare with.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from largebatch.errors import UserError
from largebatch.recipes import all_recipes, document, ladder, text

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "recipes.md"
GOLDEN = ROOT / "tests" / "recipes" / "golden"
_CELLS = 160


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("name", nargs="?", help="recipe to show (all are listed)")
    made.add_argument(
        "--batch", type=int, help=f"propose for this batch, {ladder.LEAST} to {ladder.MOST}"
    )
    made.add_argument("--configs", type=Path, default=ROOT / "configs", help="folder (configs)")
    made.add_argument("--write_docs", action="store_true", help="write docs/recipes.md")
    made.add_argument("--write_golden", action="store_true", help="write the tests' texts")
    return made


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows without boxes."""
    made = Table(box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    flags = parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_CELLS)  # rows stay whole
    try:
        if flags.batch is not None:
            for line in document.proposal(ladder.propose(flags.batch)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            return 0
        recipes = all_recipes(flags.configs)
        if flags.write_docs:
            DOCS.write_text(document.page(recipes))
        if flags.write_golden:
            GOLDEN.mkdir(exist_ok=True)
            for old in GOLDEN.glob("*.txt"):
                old.unlink()
            for recipe in recipes:
                (GOLDEN / f"{recipe.name}.txt").write_text(text.resolved_text(recipe))
        if flags.name:
            recipe = text.named(recipes, flags.name)
            console.print(recipe.about, markup=False, highlight=False)
            console.print(table(("option", "value", "tag"), text.values(recipe)))
            for line in text.legend(recipe):
                console.print(line, markup=False, highlight=False)
        elif not (flags.write_docs or flags.write_golden):
            console.print(table(text.HEADINGS, text.listing(recipes)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
