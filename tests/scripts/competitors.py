"""Competitors for tests of the benchmark; a child process imports this module."""

import os
import subprocess
import sys
import time

from benchmarks.competitor import Absent
from benchmarks.feeding import _other_cpu_s


def counting(work):
    calls = []

    def repeat():
        calls.append(1)
        return {"calls": len(calls), "pid": os.getpid(), "cores": os.sched_getaffinity(0)}

    return repeat, "counts"


def absent(work):
    raise Absent("not here")


def broken(work):
    raise KeyError("oops")


def ending(work):
    os._exit(3)


def silent(work):
    return lambda: time.sleep(600), ""


def with_descendants(work):
    """A child that uses 0.3 s of processor, and lets one of its own use as much."""
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    parent = f"{busy}import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\n"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{parent}print('done', flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    found = {"cpu": _other_cpu_s()}
    child.communicate()
    return lambda: found | {"after": _other_cpu_s()}, ""
