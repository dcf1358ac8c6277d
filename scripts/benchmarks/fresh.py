"""What is measured of one process at a time: its start, its memory, and other stores."""

from statistics import median

from benchmarks.competitor import Competitor
from benchmarks.doctor import rate_with
from benchmarks.measure import Result
from benchmarks.workload import Absent, Workload

_FIRST_BATCH_S = 3.0
_MEMORY_GIB = 2.0
_GIB = 1 << 30


def first_batch(work: Workload, repeats: int) -> list[Result]:
    """From the start of a fresh process to its first batch, and whether TensorFlow was imported."""
    seconds, imported = [], []
    for _ in range(repeats):
        with Competitor("benchmarks.first_batch", work) as fresh:
            seconds.append(fresh.ready_s)
            imported.append(fresh.repeat()["tensorflow"])
    return [
        Result("start to first batch", "s", tuple(seconds), better="less", goal=_FIRST_BATCH_S),
        Result("TensorFlow imported", "times", (sum(imported),), better="less", goal=0),
    ]


def memory(work: Workload) -> list[Result]:
    """Peak memory of a process that loads a global batch of 81,920, beyond one microbatch."""
    with Competitor("benchmarks.memory", work) as fresh:
        found = fresh.repeat()
    beyond = (found["peak"] - found["microbatch"]) / _GIB
    note = (
        f"global batch 81,920 in microbatches of {work.batch:,} "
        f"({found['microbatch'] / _GIB:.2f} GiB each), {found['images']:,} images read; "
        f"{found['before'] / _GIB:.2f} GiB before the first"
    )
    name = "loader's peak memory beyond one microbatch"
    return [Result(name, "GiB", (beyond,), better="less", goal=_MEMORY_GIB, note=note)]


def alternatives(work: Workload, repeats: int, rate: float, total_us: float) -> dict[str, float]:
    """Images/s that this host would give from other stores; none where there are no photographs.

    Args:
        work: On one core.
        repeats: After one to warm up.
        rate: Images/s as measured.
        total_us: Processor time of an image as measured, µs.
    """
    try:
        with Competitor("benchmarks.alternatives", work) as competitor:
            competitor.repeat()
            found = [competitor.repeat() for _ in range(repeats)]
    except Absent:
        return {}
    us = {name: median(one[name] for one in found) for name in found[0]}
    return {
        "re-encoded to 256 px, quality 90": rate_with(
            rate, total_us, us["as_stored"], us["reencoded"]
        ),
        "decoded store of 256 px, crops on the device": rate_with(
            rate, total_us, total_us, us["decoded"]
        ),
    }
