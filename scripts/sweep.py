r"""Train with many values of a few options, in parallel, and say which were best.

    python scripts/sweep.py --config=configs/digits.py --workdir=sweeps/lr --jobs=2 \
        --sweep 'schedule.peak=log:0.5:8:6' --sweep 'schedule.warmup=2 epochs,5 epochs'

--sweep: key=a,b,c, key=log:LOW:HIGH:N, key=lin:LOW:HIGH:N, or a recipe with a sweep(), such
as configs/sweeps/lr_warmup.py. Options of all trials are as in train.py. The same command goes on
after any end. docs/sweeps.md explains searches, SLURM and what WORKDIR holds.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from largebatch.config import command_line
from largebatch.errors import ConfigError, UserError
from largebatch.guard import exit_code
from largebatch.sweep.description import Search, progress
from largebatch.sweep.outcome import Objective
from largebatch.sweep.session import Request, best_command, sweep
from largebatch.sweep.slurm import Cluster, Resources

ROOT = Path(__file__).resolve().parent.parent


class _Wide(argparse.RawDescriptionHelpFormatter):
    """Room for the longest flag, so that each has one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=_Wide,
        allow_abbrev=False,
        usage="sweep.py [--config FILE] [--sweep AXES …] [flags] [--config.section.key=value …]",
    )
    add = made.add_argument
    add("--config", type=Path, metavar="FILE", help="recipe (the sweep's, or configs/digits.py)")
    add(
        "--sweep", action="append", default=[], metavar="AXES", help="what to vary; may be repeated"
    )
    add("--workdir", type=Path, metavar="DIR", help="where it is kept (sweeps/NAME)")
    add("--search", choices=get_args(Search), default="grid", help="how trials are chosen (grid)")
    add("--trials", type=int, metavar="N", help="how many, of quasi and tpe")
    add("--objective", choices=get_args(Objective), default="top1", help="what is sought (top1)")
    add("--seed", type=int, default=0, metavar="N", help="of the search (0)")
    add("--jobs", type=int, metavar="N", help="trials at a time (1, or one for each GPU)")
    add("--slurm", nargs="?", const="slurm", choices=get_args(Cluster), help="as job arrays")
    add("--partition", default="", metavar="NAME", help="of SLURM")
    add("--time", type=int, default=1440, metavar="MINUTES", help="of a job there (1440)")
    add("--gpus", type=int, default=0, metavar="N", help="of a job there (0)")
    add("--cpus", type=int, default=0, metavar="N", help="of a job there (the cluster's default)")
    add("--slurm_option", action="append", default=[], metavar="NAME=VALUE", help="of sbatch")
    kind = made.add_mutually_exclusive_group()
    kind.add_argument("--dry_run", action="store_true", help="check and list the trials")
    kind.add_argument("--best", action="store_true", help="print the command of the winner")
    return made


def request(flags: argparse.Namespace, others: Sequence[str]) -> Request:
    """What the command line asks for.

    Raises:
      ConfigError: an argument of another form.
    """
    wrong = [option for option in flags.slurm_option if "=" not in option.strip("=")]
    if wrong:
        raise ConfigError(f"--slurm_option={wrong[0]} names no value; write NAME=VALUE")
    return Request(
        train=ROOT / "train.py",
        recipe=flags.config,
        fallback=Path("configs/digits.py"),
        sweeps=tuple(flags.sweep),
        overrides=tuple(command_line.overrides(others)),
        workdir=flags.workdir,
        search=flags.search,
        trials=flags.trials,
        objective=flags.objective,
        seed=flags.seed,
        jobs=flags.jobs,
        cluster=flags.slurm,
        resources=Resources(
            minutes=flags.time,
            gpus=flags.gpus,
            cpus=flags.cpus,
            partition=flags.partition,
            others=dict(option.split("=", 1) for option in flags.slurm_option),
        ),
        dry_run=flags.dry_run,
    )


def main(arguments: Sequence[str]) -> int:
    """Sweep; the result is the process's exit code (largebatch.guard.codes)."""
    flags, others = parser().parse_known_args(arguments)

    def run() -> None:
        asked = request(flags, others)
        if not flags.best:
            sweep(asked)
        elif not (asked.workdir or asked.sweeps):
            raise UserError("--best needs the --workdir of a sweep")
        else:
            print(best_command(asked.place))
            ended, total = progress(asked.place)
            if ended < total:
                print(
                    f"warning: the sweep is unfinished ({ended} of {total} trials have ended); a "
                    "later trial can be better",
                    file=sys.stderr,
                )

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
