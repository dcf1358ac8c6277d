"""Replaces itself by the command of a trial, on cores of its own, which ends with the sweep.

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

if __name__ == "__main__":
    parent, cores, *command = sys.argv[1:]
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        with contextlib.suppress(OSError):
            if cores:
                os.sched_setaffinity(0, map(int, cores.split(",")))
    if os.getppid() != int(parent):  # it ended before the signal was set
        sys.exit(_PREEMPTED)
    os.execvp(command[0], command)
