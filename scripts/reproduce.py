"""Repeat a published run: several seeds, on the clock by MLPerf's rules, with a record.

    python scripts/reproduce.py digits --runs=2
    python scripts/reproduce.py fujitsu2019_81920 --scale=laptop
    python scripts/reproduce.py fujitsu2019_81920 --config.data.data_dir=DATA

--scale=laptop shrinks the recipe to the digits, node to some 10,000 photographs on one node
(folder:imagenette2-320 unless --config.data.source names another); full leaves it unchanged.
docs/reproduce.md explains the clock and the record. Options are overridden as in train.py; several
processes find each other as there, by their launcher or the environment.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure

from largebatch.cli import Parser
from largebatch.config.checks import check_ranges
from largebatch.config.recipes import load_recipe
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import Watchdog, exit_code, leave
from largebatch.fault_tolerance.peers import peers_of
from largebatch.store_urls import check_local


def main(arguments: Sequence[str]) -> int:
    """Run all seeds; return the exit code of the process."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run all seeds and write the record.

    Raises:
      UserError: anything that the user can fix.
    """
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file, also as in the example")
    parser.add_argument("--runs", type=int, default=5, help="number of seeds (5)")
    parser.add_argument(
        "--scale", choices=("laptop", "node", "full"), default="full", help="size (full)"
    )
    parser.add_argument("--out", type=Path, default=Path("records"), help="directory (records)")
    parser.add_argument(
        "--cluster",
        default="",
        help="machines that it runs on, such as dgx-h100 or FILE.toml, for a prediction (none)",
    )
    parser.add_argument(
        "--workdir", type=Path, default=Path("runs"), help="where the runs themselves go (runs)"
    )
    flags, overrides = parser.parse_run(arguments)
    if flags.runs < 1:
        raise ConfigError(f"--runs={flags.runs}: expected at least 1")
    check_local("--out", flags.out)
    check_local("--workdir", flags.workdir)
    loaded = load_recipe(flags.config, overrides)
    check_ranges(loaded.config)

    # These import JAX, which takes seconds: only now, so that mistakes are reported at once.
    from largebatch.parallel import processes
    from largebatch.tools.reproduce.reproduction import Request, reproduce
    from largebatch.training import agreement

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
        watchdog.join(peers_of(loaded.config.health.peer_timeout_s))
        agreement.check(loaded.config, {"--runs": str(flags.runs), "--scale": flags.scale})
        processes.prepare_devices()
        reproduce(request, measure.environment(), loaded.published, hosts=hosts, watchdog=watchdog)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
