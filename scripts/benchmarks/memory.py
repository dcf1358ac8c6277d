"""A fresh process: the most memory that loading a global batch takes, microbatch by microbatch."""

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.product import microbatches, training_split
from benchmarks.runner import Figures, descendants
from benchmarks.workload import Workload

GLOBAL_BATCH = 81_920


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`; bytes. The repeat reads `work.images` of the global batch."""
    source = training_split(work)
    batches = microbatches(source, work, stop=-(-GLOBAL_BATCH // work.batch) * work.batch)
    before = peak_bytes()

    def repeat() -> Figures:
        held, images = None, 0
        while images < min(work.images, GLOBAL_BATCH):
            held = next(batches)  # the one before stays until this one is there, as in training
            images += len(held.ids)
        peak = peak_bytes()
        batches.close()
        return {"peak": peak, "before": before, "microbatch": held.images.nbytes, "images": images}

    return repeat


def peak_bytes() -> int:
    """Most memory that was resident, summed over this process and its living descendants; Linux.

    The kernel's high-water mark of the address space: `ru_maxrss` would keep that of the parent
    from before the program was loaded.
    """
    total = 0
    for process in [os.getpid(), *descendants()]:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total
