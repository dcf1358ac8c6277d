r"""Train with many values of a few options, in parallel, and report the best.

    python scripts/sweep.py --config=configs/digits.py --workdir=sweeps/lr --jobs=2 \
        --sweep 'schedule.peak=log:0.5:8:6' --sweep 'schedule.warmup=2 epochs,5 epochs'

--sweep: key=a,b,c, key=log:LOW:HIGH:N, key=lin:LOW:HIGH:N, or a recipe with a sweep(), such as
configs/sweeps/lr_warmup.py. Options of all trials are those of train.py. The same command resumes a
sweep. Started several times at once, its processes share the trials (docs/sweeps.md).
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.tools.sweep.results import best_command
from largebatch.tools.sweep.session import Request, Search, sweep


def parser() -> Parser:
    """Return the parser of the command line."""
    wide = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=100)
    made = Parser(
        __doc__,
        formatter_class=wide,  # each flag has one line
        usage="sweep.py [--config RECIPE] [--sweep AXES …] [flags] [--config.section.key=value …]",
    )
    made.add_recipe("recipe: a name or a file (the sweep's, or digits)", optional=True)
    add = made.add_argument
    add(
        "--sweep", action="append", default=[], metavar="AXES", help="what to vary; may be repeated"
    )
    add("--workdir", type=Path, metavar="DIR", help="where the sweep is kept (sweeps/NAME)")
    add("--search", choices=get_args(Search), default="grid", help="how trials are chosen (grid)")
    add("--trials", type=int, metavar="N", help="number of trials, of quasi and tpe")
    add(
        "--objective",
        default="top1",
        metavar="RESULT",
        help="top1, loss, target_s, ema_top1, ema_loss or NAME/top1 of a set (top1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the search (0)")
    add("--jobs", type=int, metavar="N", help="trials at a time (1, or one for each GPU)")
    kind = made.add_mutually_exclusive_group()
    kind.add_argument("--dry_run", action="store_true", help="list the trials, run none")
    kind.add_argument("--best", action="store_true", help="print the command of the winner")
    kind.add_argument(
        "--retry_failed", action="store_true", help="resume, and run failed trials again"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Sweep; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Sweep, list the trials or print the winner.

    Raises:
      UserError: anything that the user can fix.
    """
    flags, overrides = parser().parse_run(arguments)
    names = {field.name for field in dataclasses.fields(Request)}
    given = {name: value for name, value in vars(flags).items() if name in names}
    asked = Request(**given, overrides=overrides)
    if not flags.best:
        sweep(asked)
    elif not (asked.workdir or asked.sweep):
        raise UserError("--best needs the --workdir of a sweep")
    else:
        command, ended, total = best_command(asked.place)
        print(command)
        if ended < total:
            print(
                f"warning: the sweep is unfinished ({ended} of {total} trials have ended); a "
                "later trial can be better",
                file=sys.stderr,
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
