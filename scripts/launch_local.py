"""Run a command as several processes of one training run on this machine, on CPU devices.

    python scripts/launch_local.py --processes 2 -- train.py --workdir=runs/two

Each process has its own CPU devices. The processes communicate over loopback (Gloo), as the hosts
of a cluster do over a network. The command shows the output of process 0 and the standard error of
the others. Its exit code is that of the process that failed first. When one has failed, the others
have 120 s to save and end; a stopped process (SIGSTOP) is killed at once. SIGTERM, SIGINT and
SIGUSR1 go to all processes.
"""

import sys
from collections.abc import Sequence

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.tools import local_processes


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Launch, wait and clean up; return the exit code to pass on.

    Raises:
      ConfigError: a mistake on the command line.
    """
    parser = Parser(__doc__)
    parser.add_argument("--processes", type=int, required=True, help="how many processes")
    parser.add_argument(
        *("--devices_per_process", "--devices"),
        type=int,
        default=1,
        metavar="N",
        help="CPU devices of each; --devices is the old name (1)",
    )
    parser.add_argument("command", nargs="+", metavar="-- SCRIPT [ARGUMENT ...]")
    flags = parser.parse_args(arguments)
    if flags.processes < 1 or flags.devices_per_process < 1:
        raise ConfigError("--processes, --devices_per_process: expected at least 1")
    return local_processes.run(flags.command, flags.processes, flags.devices_per_process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
