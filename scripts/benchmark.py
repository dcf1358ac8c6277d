"""Measure this installation and its peers in the same run.

    python scripts/benchmark.py input --data tfds:imagenet2012 --json records/input.json

Each subcommand is a module of scripts/benchmarks with `add_arguments` and `run`; one with OVERRIDES
also takes --config.section.key=value. Figures are medians of interleaved repeats; a ratio above 1
means that largebatch is better. Peers that are not installed are reported as absent.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import write_json

SUBCOMMANDS = (
    "input",
    "allreduce",
    "step",
    "run",
    "correctness",
    "optimizer",
    "gpu",
)


def parser(names: Sequence[str] = SUBCOMMANDS) -> Parser:
    """The command line of some subcommands; their modules are imported."""
    top = Parser(__doc__)
    choices = top.add_subparsers(required=True, metavar="WHAT")
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        one = choices.add_parser(
            name,
            description=module.__doc__,
            help=module.__doc__.partition("\n")[0].partition(":")[0].rstrip("."),
        )
        one.add_argument("--json", type=Path, metavar="FILE", help="file for the record")
        module.add_arguments(one)
        overridable = getattr(module, "OVERRIDES", False)
        one.set_defaults(run=module.run, name=name, overridable=overridable)
    return top


def main(arguments: Sequence[str]) -> int:
    """Run; returns the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Measure, show, and write the record.

    Raises:
      UserError: a mistake on the command line or in the data.
    """
    # The libraries of the other subcommands may not be installed here.
    named = [word for word in arguments[:1] if word in SUBCOMMANDS]
    flags, flags.overrides = parser(named or SUBCOMMANDS).parse_run(arguments)
    if flags.overrides and not flags.overridable:
        raise ConfigError(f"benchmark {flags.name} takes no --config.section.key=value")
    results = flags.run(flags)
    if flags.json and results:
        record = measure.header("benchmark.py", arguments)
        write_json(flags.json, record | {"results": [result.as_json() for result in results]})
    if results:
        measure.show(flags.name, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
