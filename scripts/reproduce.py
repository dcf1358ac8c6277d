"""Repeat a published run: several seeds, on the clock by MLPerf's rules, with a record.

    python scripts/reproduce.py digits --runs=2
    python scripts/reproduce.py fujitsu2019_81920 --scale=laptop
    python scripts/reproduce.py fujitsu2019_81920 --config.data.data_dir=DATA

--scale=laptop shrinks the recipe to digits, node to a set of some 10,000 photographs on one node
(folder:imagenette2-320 unless --config.data.source names another), full takes it as it is.
docs/reproduce.md says what is clocked and what the record holds. Options are overridden as in
train.py; several processes find each other as there, by their launcher or the environment.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks import measure

from largebatch.cli import Parser
from largebatch.config.recipes import load_recipe
from largebatch.fault_tolerance import Watchdog, exit_code, leave
from largebatch.fault_tolerance.peers import peers_of
from largebatch.parallel import processes
from largebatch.tools.reproduce.reproduction import Request, Scale, reproduce


def main(arguments: Sequence[str]) -> int:
    """Run all seeds; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run all seeds and write the record.

    Raises:
      UserError: anything that the user can fix.
    """
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file, also as in the example")
    parser.add_argument("--runs", type=int, default=5, help="seeds (5)")
    parser.add_argument("--scale", choices=get_args(Scale), default="full", help="size (full)")
    parser.add_argument("--out", type=Path, default=Path("records"), help="directory (records)")
    parser.add_argument(
        "--cluster",
        default="",
        help="machines that it runs on, such as dgx-h100, for a prediction beside the time (none)",
    )
    parser.add_argument(
        "--workdir", type=Path, default=Path("runs"), help="where the runs themselves go (runs)"
    )
    flags, overrides = parser.parse_run(arguments)
    loaded = load_recipe(flags.config, overrides)
    request = Request(
        recipe=flags.config,
        out=flags.out,
        runs_in=flags.workdir,
        runs=flags.runs,
        scale=flags.scale,
        overrides=tuple(overrides),
        command=shlex.join(["python", "scripts/reproduce.py", *arguments]),
        cluster=flags.cluster,
    )
    with Watchdog(loaded.config.health).watching() as watchdog:
        hosts = processes.initialise()
        processes.check_devices()
        watchdog.join(peers_of(loaded.config.health.peer_timeout_s))
        reproduce(request, measure.environment(), loaded.published, hosts=hosts, watchdog=watchdog)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
