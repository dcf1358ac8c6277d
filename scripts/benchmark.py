"""Measure this installation, and its peers beside it in the same run.

    python scripts/benchmark.py input --data tfds:imagenet2012 --json records/input.json

Each subcommand is a module of scripts/benchmarks with `add_arguments` and `run`. Figures are
medians of interleaved repeats; a ratio above 1 means that ours is better. Peers that are not
installed are reported as absent.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.table import show

from largebatch.errors import UserError

SUBCOMMANDS = ("input",)


def parser() -> argparse.ArgumentParser:
    """The command line of all subcommands."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = top.add_subparsers(required=True, metavar=f"{{{','.join(SUBCOMMANDS)}}}")
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"benchmarks.{name}")
        one = choices.add_parser(
            name,
            description=module.__doc__,
            help=module.__doc__.partition("\n")[0],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--json", type=Path, help="where to write the record")
        module.add_arguments(one)
        one.set_defaults(run=module.run, name=name)
    return top


def main(arguments: Sequence[str]) -> int:
    """Measure, show, and keep the record."""
    flags = parser().parse_args(arguments)
    try:
        results = flags.run(flags)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if results:
        show(flags.name, results)
    if flags.json and results:
        command = shlex.join(["python", "scripts/benchmark.py", *arguments])
        measure.write(flags.json, measure.record(results, command))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
