"""List the recipes, show one with the source of each value, or propose one for another batch.

    python scripts/recipes.py
    python scripts/recipes.py fujitsu2019_81920
    python scripts/recipes.py --batch 40000

--write_golden writes the resolved texts that the tests compare with.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from largebatch.cli import Parser
from largebatch.config.recipes import all_recipes, load_recipe
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.planning import ladder
from largebatch.tools import recipe_text as text

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "recipes" / "golden"
_CELLS = 160


def parser() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_recipe("recipe to show, a name or a file (all are listed)", optional=True)
    made.add_argument(
        "--batch", type=int, help=f"propose for this batch, {ladder.LEAST} to {ladder.MOST}"
    )
    made.add_argument("--run", type=Path, help="with --batch: compare with its noise scale")
    made.add_argument("--configs", type=Path, default=ROOT / "configs", help="folder (configs)")
    made.add_argument("--write_golden", action="store_true", help="write the tests' texts")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """List, show, propose or write.

    Raises:
      UserError: a mistake on the command line.
    """
    flags = parser().parse_args(arguments)
    if flags.run and flags.batch is None:
        raise ConfigError(f"--run={flags.run}: expected --batch with it, got none; add --batch=N")
    if flags.batch is not None:
        if flags.run:
            print(text.cost_of_batch(flags.batch, flags.run))
        print("\n".join(text.proposal(ladder.propose(flags.batch))))
        return
    recipes = all_recipes(flags.configs)
    if flags.write_golden:
        GOLDEN.mkdir(exist_ok=True)
        for old in GOLDEN.glob("*.txt"):
            old.unlink()
        for recipe in recipes:
            (GOLDEN / f"{recipe.name}.txt").write_text(text.resolved_text(recipe))
    if flags.config:
        own = flags.configs / f"{flags.config.stem}.py"
        recipe = load_recipe(own if own.is_file() else flags.config)
        print(recipe.about)
        _print_table(("option", "value", "tag"), text.values(recipe))
        print("\n".join([*text.legend(recipe.sources.values()), "–: not of the published run"]))
    elif not flags.write_golden:
        _print_table(text.HEADINGS, text.listing(recipes))
        tags = (recipe.published.provenance for recipe in recipes if recipe.published)
        print("\n".join(("", *text.legend(tags))))


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_CELLS)  # a row on one line
    made = Table(box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*row)
    console.print(made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
