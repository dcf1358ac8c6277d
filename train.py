"""Train ResNet on ImageNet, or on what the recipe says, at any global batch.

    python train.py --config=configs/digits.py --workdir=runs/digits --config.run.seed=1

The same command again resumes. docs/configuration.md lists every option.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Overrides, Parser
from largebatch.config import load
from largebatch.config.checks import check_ranges
from largebatch.config.recipe_file import label
from largebatch.fault_tolerance import Watchdog, exit_code, leave
from largebatch.training.request import Request, check


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Overrides]:
    """The flags, and the options of the recipe."""
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file (digits)", default="digits")
    parser.add_argument("--workdir", type=Path, help="where the run is kept (runs/RECIPE)")
    parser.add_argument(
        "--init_from", help="begin with these weights: a run, checkpoint or file (model.init_from)"
    )
    parser.add_argument(
        "--resume",
        choices=("auto", "never", "must"),
        default="auto",
        help="from the newest checkpoint if there is one (auto); archive an earlier run in "
        "WORKDIR/previous (never); only from a checkpoint (must)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--dry_run", action="store_true", help="run two steps of everything, keep nothing"
    )
    kind.add_argument("--eval_only", action="store_true", help="evaluate the newest checkpoint")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, with several processes")
    parser.add_argument("--processes", type=int, help="how many processes there are")
    parser.add_argument("--process", type=int, help="which of them this is, from 0")
    return parser.parse_run(arguments)


def run(arguments: Sequence[str]) -> None:
    """Resolve the command line and do what it asks for."""
    flags, overrides = parse(arguments)
    if flags.init_from:
        overrides = [*overrides, ("model.init_from", flags.init_from)]
    config = load(flags.config, overrides)
    check_ranges(config)
    request = Request(
        recipe=flags.config,
        workdir=flags.workdir or Path("runs") / label(flags.config),
        overrides=tuple(overrides),
        resume=flags.resume,
        dry_run=flags.dry_run,
        eval_only=flags.eval_only,
    )
    check(config, request)
    with Watchdog(config.health).watching() as watchdog:
        # The trainer imports JAX, which takes seconds: only now, so that mistakes come at once.
        from largebatch.fault_tolerance.peers import peers_of
        from largebatch.parallel import compile_cache, processes
        from largebatch.training import session

        hosts = processes.initialise(
            coordinator=flags.coordinator, processes=flags.processes, process=flags.process
        )
        processes.check_devices()
        watchdog.join(peers_of(config.health.peer_timeout_s))
        compile_cache.use(config.run.compile_cache)
        session.run(config, request, hosts=hosts, watchdog=watchdog)


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
