"""End what a test session has started when the session is gone, however it ended.

A child process outlives pytest and kills every process that has the session's mark in its
environment. This also works where pytest or a worker received SIGKILL.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

MARK = "LARGEBATCH_TEST_SESSION"


def start():
    """Watch over this process; without effect where the system cannot wait for a process."""
    if hasattr(os, "pidfd_open") and Path("/proc/self/environ").exists():
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK]]
        environment = {key: value for key, value in os.environ.items() if key != MARK}
        os.posix_spawn(sys.executable, command, environment, setsid=True)


def reap(mark):
    """Kill the processes with this mark; returns their number."""
    wanted, killed = f"{MARK}={mark}".encode(), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it has ended, or is another user's
            continue
    return killed


def main(pid, mark):
    """Wait for a process to end, then kill until nothing is left."""
    select.select([os.pidfd_open(pid)], [], [])
    for _ in range(20):
        if not reap(mark):
            break
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
