"""Run a command as several processes of one training run on this machine, on CPU devices.

    python scripts/launch_local.py --processes 2 -- train.py --workdir=runs/two

Each process has its own CPU devices. The processes communicate over loopback (Gloo), as the hosts
of a cluster do over a network. The command shows the output of process 0 and the standard error of
the others. Its exit code is that of the process that failed first; the others end too, or are
killed. SIGTERM, SIGINT and SIGUSR1 go to all processes.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.fault_tolerance import exit_codes as codes

GRACE_S = 120.0


def free_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(command: Sequence[str], processes: int, devices: int) -> list[subprocess.Popen]:
    """Start ``command`` as ``processes`` processes of ``devices`` CPU devices each."""
    address = f"127.0.0.1:{free_port()}"
    started = []
    for index in range(processes):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(index),
        }
        quiet = None if index == 0 else subprocess.DEVNULL
        started.append(subprocess.Popen([sys.executable, *command], env=environment, stdout=quiet))
    return started


def verdict(ended: Sequence[int]) -> int:
    """The exit code to pass on: one that says why, rather than that of one that had to follow.

    A process that was killed by a signal n says nothing: 128 + n, if no other has noticed.
    """
    failed = sorted(
        (code for code in ended if code), key=lambda code: (code < 0, code == codes.PEER)
    )
    return 0 if not failed else failed[0] if failed[0] > 0 else 128 - failed[0]


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Launch, wait and clean up.

    Returns:
      The exit code to pass on.

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
        raise ConfigError("--processes and --devices_per_process must be at least 1")
    started = launch(flags.command, flags.processes, flags.devices_per_process)

    def pass_on(number: int, _: object) -> None:
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, pass_on)
    try:
        while None in (ended := [process.poll() for process in started]) and not any(ended):
            time.sleep(0.1)
        deadline = time.monotonic() + GRACE_S  # the others may be saving
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in started:
            process.kill()  # what has not ended
            process.wait()
    return verdict([process.returncode for process in started])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
