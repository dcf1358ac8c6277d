"""Replaces itself by the command of a trial, on cores of its own, that ends with the sweep.

    python child.py PARENT CORES COMMAND …

It is run by its path and imports only the standard library. PARENT is the process id of the sweep:
when that process ends in any way, Linux sends SIGTERM, on which a training saves and stops. CORES
are numbers with commas; empty: all.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PREEMPTED = 75  # largebatch.fault_tolerance.PREEMPTED


def main(parent: int, cores: str, *command: str) -> None:
    """Replace this process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the signal was set
            sys.exit(_PREEMPTED)
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
