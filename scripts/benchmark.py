"""Measure this installation, and its peers beside it in the same run.

    python scripts/benchmark.py input --data tfds:imagenet2012 --json records/input.json

Each subcommand is a module of scripts/benchmarks with `add_arguments` and `run`; one with OVERRIDES
takes --config.section.key=value too. Figures are medians of interleaved repeats; a ratio above 1
means that ours is better. Peers that are not installed are reported as absent.
"""

import argparse
import importlib
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.table import show

from largebatch.config import command_line
from largebatch.errors import ConfigError, UserError

SUBCOMMANDS = (
    "input",
    "allreduce",
    "step",
    "end_to_end",
    "correctness",
    "optimizer",
    "microbatch",
    "gpu",
)


def parser(names: Sequence[str] = SUBCOMMANDS) -> argparse.ArgumentParser:
    """The command line of some subcommands, whose modules are imported."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = top.add_subparsers(required=True, metavar="WHAT")
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        one = choices.add_parser(
            name,
            description=module.__doc__,
            help=module.__doc__.partition("\n")[0].partition(":")[0].rstrip("."),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--json", type=Path, help="where to write the record")
        module.add_arguments(one)
        overridable = getattr(module, "OVERRIDES", False)
        one.set_defaults(run=module.run, name=name, overridable=overridable)
    return top


def main(arguments: Sequence[str]) -> int:
    """Measure, show, and keep the record."""
    # So that the competitors, which may stand still, are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What the others need may not be installed here.
    named = [word for word in arguments[:1] if word in SUBCOMMANDS]
    flags, others = parser(named or SUBCOMMANDS).parse_known_args(arguments)
    try:
        flags.overrides = command_line.overrides(others)
        if flags.overrides and not flags.overridable:
            raise ConfigError(f"benchmark {flags.name} takes no --config.section.key=value")
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
