"""Train ResNet on ImageNet, or on what the recipe says, at any global batch.

    python train.py --config=configs/digits.py --workdir=runs/digits --config.run.seed=1

The same command again resumes. docs/configuration.md lists every option.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.config import command_line, load
from largebatch.guard import Guard, exit_code, leave
from largebatch.parallel import compile_cache, processes
from largebatch.parallel.peers import peers_of
from largebatch.train import session


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and what is left: overrides of options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", type=Path, default=Path("configs/digits.py"), help="recipe (configs/digits.py)"
    )
    parser.add_argument("--workdir", type=Path, help="where the run is kept (runs/RECIPE)")
    parser.add_argument(
        "--init_from", help="begin with these weights: a run, checkpoint or file (model.init_from)"
    )
    parser.add_argument(
        "--resume",
        choices=("auto", "never", "must"),
        default="auto",
        help="from the newest checkpoint if there is one (auto); put an earlier run aside (never)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--dry_run", action="store_true", help="two steps of all, nothing kept")
    kind.add_argument("--eval_only", action="store_true", help="evaluate the newest checkpoint")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, with several processes")
    parser.add_argument("--processes", type=int, help="how many processes there are")
    parser.add_argument("--process", type=int, help="which of them this is, from 0")
    return parser.parse_known_args(arguments)


def run(arguments: Sequence[str]) -> None:
    """Resolve the command line and do what it asks for."""
    flags, others = parse(arguments)
    overrides = command_line.overrides(others)
    if flags.init_from:
        overrides = [*overrides, ("model.init_from", flags.init_from)]
    config = load(flags.config, overrides)
    request = session.Request(
        recipe=flags.config,
        workdir=flags.workdir or Path("runs") / flags.config.stem,
        overrides=tuple(overrides),
        resume=flags.resume,
        dry_run=flags.dry_run,
        eval_only=flags.eval_only,
    )
    with Guard(config.health).watching() as guard:
        hosts = processes.initialise(
            coordinator=flags.coordinator, processes=flags.processes, process=flags.process
        )
        processes.check_devices()
        guard.join(peers_of(config.health.peer_timeout_s))
        compile_cache.use(config.run.compile_cache)
        session.run(config, request, hosts=hosts, guard=guard)


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.guard.codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
