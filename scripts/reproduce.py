"""Repeat a published run: several seeds, on the clock by MLPerf's rules, with a record.

    python scripts/reproduce.py digits --runs=2
    python scripts/reproduce.py fujitsu2019_81920 --scale=laptop
    python scripts/reproduce.py fujitsu2019_81920 --config.data.data_dir=DATA

--scale=laptop shrinks the recipe to digits, node to a set of some 10,000 photographs on one node
(folder:imagenette2-320 unless --config.data.source names another), full takes it as it is.
docs/reproduce.md says what is clocked and what the record holds. Options are overridden as in
train.py; several processes find each other as there, by their launcher or the environment.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks import measure

from largebatch.config import command_line
from largebatch.errors import UserError
from largebatch.parallel import processes
from largebatch.recipes import load_recipe
from largebatch.train.reproduction import Request, Scale, reproduce

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def main(arguments: Sequence[str]) -> int:
    """Run all seeds; the result is the process's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="name of a file in configs/, or a path")
    parser.add_argument("--runs", type=int, default=5, help="seeds (5)")
    parser.add_argument("--scale", choices=get_args(Scale), default="full", help="size (full)")
    parser.add_argument("--out", type=Path, default=Path("records"), help="directory (records)")
    parser.add_argument(
        "--workdir", type=Path, default=Path("runs"), help="where the runs themselves go (runs)"
    )
    flags, others = parser.parse_known_args(arguments)
    try:
        overrides = command_line.overrides(others)
        recipe = Path(flags.recipe)
        if recipe.suffix != ".py":
            recipe = CONFIGS / f"{flags.recipe}.py"
        published = load_recipe(recipe).published
        hosts = processes.initialise()
        request = Request(
            recipe=recipe,
            out=flags.out,
            runs_in=flags.workdir,
            runs=flags.runs,
            scale=flags.scale,
            overrides=tuple(overrides),
            command=shlex.join(["python", "scripts/reproduce.py", *arguments]),
        )
        reproduce(request, measure.environment(), published, hosts=hosts)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
