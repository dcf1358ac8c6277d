"""Becomes the command of a trial, with cores of its own, and ends with the sweep.

    python child.py PARENT CORES COMMAND …

Run by its path, so that it imports nothing but the standard library. PARENT is the process id of
the sweep; where that dies, however it dies, Linux sends SIGTERM, on which a training saves and
stops. CORES are numbers with commas between; empty: all.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PREEMPTED = 75  # as of largebatch.fault_tolerance, which this need not import


def main(parent: int, cores: str, *command: str) -> None:
    """Replace this process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it could be watched
            sys.exit(_PREEMPTED)
        if cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
