"""Train a ResNet from a recipe at any global batch size.

    python train.py --config=configs/digits.py --workdir=runs/digits --config.run.seed=1

Run the same command again to resume. docs/configuration.md lists all options.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Overrides, Parser
from largebatch.config import Config, load
from largebatch.config.checks import check_ranges
from largebatch.config.recipe_file import label
from largebatch.environment import is_one_of_several
from largebatch.errors import UserError
from largebatch.fault_tolerance import MISTAKE, Watchdog, exit_code, leave
from largebatch.fault_tolerance.exit_codes import report
from largebatch.files import json_text
from largebatch.training.request import Request, check


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Overrides]:
    """Parse the flags and the overrides of the recipe's options."""
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file (digits)", default="digits")
    parser.add_argument("--workdir", type=Path, metavar="DIR", help="run directory (runs/RECIPE)")
    parser.add_argument(
        "--init_from", metavar="WEIGHTS", help="initial weights: run, checkpoint or file"
    )
    parser.add_argument(
        "--resume",
        choices=("auto", "never", "must", "extend"),
        default="auto",
        help="auto: resume from the newest checkpoint if there is one; never: move an earlier run "
        "to WORKDIR/previous; must: fail without a checkpoint; extend: resume with another "
        "schedule.length or other options of the schedule, also a complete run",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--dry_run",
        action="store_true",
        help="compile, run two steps, evaluate, save and restore; keep nothing",
    )
    kind.add_argument("--eval_only", action="store_true", help="evaluate the newest checkpoint")
    kind.add_argument(
        "--print_config",
        action="store_true",
        help="print all options as JSON and stop",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print only warnings, errors and the last line"
    )
    add_addresses(parser)
    return parser.parse_run(arguments)


def add_addresses(parser: Parser) -> None:
    """Add the flags by which several processes find each other."""
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, with several processes")
    parser.add_argument("--processes", type=int, help="number of processes")
    parser.add_argument("--process", type=int, help="index of this process, from 0")


def checked(arguments: Sequence[str]) -> tuple[argparse.Namespace, Config, Request]:
    """Parse the command line, load the configuration and check both, without JAX."""
    flags, overrides = parse(arguments)
    if flags.init_from:
        overrides = [*overrides, ("model.init_from", flags.init_from)]
    notes: list[str] = []
    config = load(flags.config, overrides, notes.append)
    check_ranges(config)
    request = Request(
        recipe=flags.config,
        workdir=flags.workdir or Path("runs") / label(flags.config),
        overrides=tuple(overrides),
        resume=flags.resume,
        dry_run=flags.dry_run,
        eval_only=flags.eval_only,
        quiet=flags.quiet,
        notes=tuple(notes),
    )
    if not flags.print_config:
        check(config, request)
    return flags, config, request


def refuse(arguments: Sequence[str], error: UserError) -> None:
    """End this process with an error; if it is one of several, the others end with it too."""
    addresses = Parser(add_help=False)
    add_addresses(addresses)
    given, _ = addresses.parse_known_args(arguments)
    if not any(value is not None for value in vars(given).values()) and not is_one_of_several(
        os.environ
    ):
        raise error
    report(f"error: {error}")  # joining the others takes seconds, or minutes if they are late
    from largebatch.training import agreement

    agreement.refuse(error, **vars(given))
    leave(MISTAKE)


def run(arguments: Sequence[str]) -> None:
    """Check the command and train, rehearse, evaluate or print the configuration."""
    try:
        flags, config, request = checked(arguments)
    except UserError as error:
        refuse(arguments, error)
        raise
    if flags.print_config:
        print(*request.notes, sep="\n", end="\n" * bool(request.notes), file=sys.stderr)
        print(json_text(dataclasses.asdict(config)))
        return
    with Watchdog(config.health).watching() as watchdog:
        # Importing JAX takes seconds: check the command line first.
        from largebatch.fault_tolerance.peers import peers_of
        from largebatch.parallel import compile_cache, processes
        from largebatch.training import agreement, session

        hosts = processes.initialise(
            coordinator=flags.coordinator, processes=flags.processes, process=flags.process
        )
        watchdog.join(peers_of(config.health.peer_timeout_s))
        agreement.check(config, request.shared)
        processes.prepare_devices()
        compile_cache.use(config.run.compile_cache)
        session.run(config, request, hosts=hosts, watchdog=watchdog)


def main(arguments: Sequence[str]) -> int:
    """Run and return the exit code of the process (see largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
