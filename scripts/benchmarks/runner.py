"""A competitor's own process: prepares, says so, then does one repeat for each line it is sent.

    python -m benchmarks.runner MODULE WORKLOAD

MODULE has `prepare(workload)`, which returns the function that does one repeat and returns its
figures; and may have `about(workload)`, how it does that. Replies are lines of JSON on standard
output; anything else that a library prints there goes to standard error.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.workload import Absent, Workload, loads
from largebatch.errors import UserError

Figures = dict[str, float]
_PR_SET_PDEATHSIG = 1


def timed(batches: Iterator[int], work: Workload) -> Callable[[], Figures]:
    """The repeat of a pipeline that runs on: what is read ahead neither gains nor loses.

    Args:
        batches: Yields, for ever, the number of images of each batch that is ready.
        work: How many images a repeat has, and how long it takes, at least.

    Returns:
        A function that takes a quarter of that, to meet the pipeline at work with nothing in
        stock, then times whole batches.
    """

    def repeat() -> Figures:
        _take(batches, work.images // 4, work.seconds / 4)
        # Those of the descendants take long to look up: outside of what is timed.
        others, own, start = descendants_cpu_s(), own_cpu_s(), time.perf_counter()
        images = _take(batches, work.images, work.seconds)
        wall, own = time.perf_counter() - start, own_cpu_s() - own
        others = descendants_cpu_s() - others
        return {"images": images, "wall_s": wall, "cpu_s": own + others}

    return repeat


def _take(batches: Iterator[int], images: int, seconds: float) -> int:
    """Takes whole batches for at least `seconds` and `images`; returns how many images."""
    start, taken = time.perf_counter(), 0
    while not taken or taken < images or time.perf_counter() - start < seconds:
        taken += next(batches)
    return taken


def own_cpu_s() -> float:
    """Processor time so far of all threads of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def descendants_cpu_s() -> float:
    """Processor time so far of the living descendants and of their children that have ended."""
    ticks = 0
    for process in descendants():
        try:
            ticks += sum(map(int, _stat(Path(f"/proc/{process}/stat"))[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants() -> list[int]:
    """Process numbers of the living descendants; Linux."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(_stat(path)[1])
        except OSError:  # it has ended meanwhile
            continue
    found, fresh = [], [os.getpid()]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def _stat(path: Path) -> list[str]:
    """Fields of /proc/N/stat from the third on (state, parent, …): the name may hold spaces."""
    return path.read_text().rpartition(")")[2].split()


def die_with_parent() -> None:
    """Has the kernel end this process with the thread that started it, even if stopped; Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(module: str, text: str) -> int:
    """Serve until standard input ends."""
    die_with_parent()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    work = loads(text)
    if work.cores:
        # Before any library counts the processors or starts threads, which inherit this.
        os.sched_setaffinity(0, work.cores)
    try:
        competitor = importlib.import_module(module)
        repeat = competitor.prepare(work)
        about = competitor.about(work) if hasattr(competitor, "about") else ""
        print(json.dumps({"ready": about}), file=replies)
        for _ in sys.stdin:
            print(json.dumps(repeat()), file=replies)
    except Absent as reason:
        print(json.dumps({"absent": str(reason)}), file=replies)
    except UserError as error:
        print(json.dumps({"error": str(error)}), file=replies)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=replies)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
