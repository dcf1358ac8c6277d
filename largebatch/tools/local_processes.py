"""Several processes of one training run on this machine, on CPU devices."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from largebatch.fault_tolerance import exit_codes as codes
from largebatch.fault_tolerance.exit_codes import report

GRACE_S = 120.0
"""What the others have to notice a failure, save and end; above `health.peer_timeout_s`."""
_POLL_S = 0.2
_STOPPED_S = 0.5  # a process that a shell continues with the others may look stopped for a moment
_QUIET_S = 5.0  # most processes end within this time after another has failed
_KILLED_S = 5.0


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
    """Return the exit code of the launcher: the first that says why.

    Args:
      ended: exit codes in the order in which the processes ended; -n: killed by signal n. A process
        that lost another one, or that was killed, counts only if no other failed.
    """
    failed = sorted(
        (code for code in ended if code), key=lambda code: (code < 0, code == codes.PEER)
    )
    return 0 if not failed else failed[0] if failed[0] > 0 else 128 - failed[0]


def states(pids: Iterable[int] | None = None) -> dict[int, tuple[int, str]]:
    """Return the parent and the state (a letter, as `ps` prints it) of processes by their id.

    Args:
      pids: which processes; None: all of this machine.
    """
    found = {}
    if Path("/proc/self/stat").exists():
        for name in Path("/proc").glob("[0-9]*") if pids is None else map(str, pids):
            with contextlib.suppress(OSError):  # it has ended
                text = Path("/proc", name, "stat").read_text(errors="replace")
                state, parent = text.rpartition(")")[2].split()[:2]
                found[int(text.partition(" ")[0])] = int(parent), state
    else:  # macOS
        which = ["-A"] if pids is None else ["-p", ",".join(map(str, pids))]
        command = ["ps", *which, "-o", "pid=,ppid=,state="]
        for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
            pid, parent, state = line.split()
            found[int(pid)] = int(parent), state[0]
    return found


def kill(process: subprocess.Popen) -> None:
    """Kill a process that has not ended, with its descendants, and wait a few seconds."""
    if process.poll() is not None:
        return
    table = states()
    family = [process.pid]
    for pid in family:  # grows
        family += [child for child, (parent, _) in table.items() if parent == pid]
    for pid in family:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    try:
        process.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        _, state = states([process.pid]).get(process.pid, (0, "unknown"))
        report(
            f"pid {process.pid} does not end after SIGKILL (state {state}); "
            "it waits for a disk or a network file system and is left behind"
        )


def supervise(started: Sequence[subprocess.Popen]) -> int:
    """Wait for all processes; when one has failed, kill those that do not end.

    Returns:
      The exit code to pass on.
    """
    running = dict(enumerate(started))
    ended: list[int] = []
    stopped_at: dict[int, float] = {}
    first, failed_at, report_at = "", float("inf"), float("inf")

    def name(index: int) -> str:
        return f"process {index} (pid {started[index].pid})"

    while running:
        time.sleep(_POLL_S)
        now = time.monotonic()
        for index, process in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[index]
            ended.append(code)
            if not first or (code and failed_at == float("inf")):
                first = f"process {index} ended with {_how(code)}"
            if code and failed_at == float("inf"):
                failed_at, report_at = now, now + _QUIET_S
        table = states(process.pid for process in running.values())
        stopped = [i for i, each in running.items() if table.get(each.pid, (0, ""))[1] == "T"]
        stopped_at = {i: stopped_at.get(i, now) for i in stopped}
        for index, since in stopped_at.items():
            if now - since < _STOPPED_S:
                continue
            if first:  # it may have ended just now: then its code counts
                report(f"{first}; {name(index)} is stopped and is killed")
                kill(running.pop(index))
                ended.append(-signal.SIGKILL)
            elif since > 0:
                pid = started[index].pid
                report(f"{name(index)} is stopped; to continue it, use: kill -CONT {pid}")
                stopped_at[index] = float("-inf")
        left = ", ".join(map(name, running))
        if now - failed_at > GRACE_S:
            report(f"{first}; {left} did not end within {GRACE_S:.0f} s and is killed")
            break
        if running and now > report_at:
            seconds = failed_at + GRACE_S - now
            report(f"{first}; waiting up to {seconds:.0f} s for {left}")
            report_at = now + 30.0
    return verdict(ended)


def _how(code: int) -> str:
    """Describe an exit code of `subprocess`."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def run(command: Sequence[str], processes: int, devices: int) -> int:
    """Run ``command`` as several processes to their end; pass signals on to them.

    Returns:
      The exit code to pass on.
    """
    started = launch(command, processes, devices)

    def pass_on(number: int, _: object) -> None:
        for process in started:
            process.send_signal(number)  # does nothing if it has ended
            process.send_signal(signal.SIGCONT)  # a stopped process acts on no other signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, pass_on)
    try:
        return supervise(started)
    finally:
        for process in started:
            kill(process)  # what has not ended
