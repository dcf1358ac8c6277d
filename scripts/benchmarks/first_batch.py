"""A fresh process: how long until the first batch is there, and what was imported for it."""

import sys
from collections.abc import Callable

from benchmarks.product import microbatches, training_split
from benchmarks.runner import Figures
from benchmarks.workload import Workload


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`: ready when the first batch is."""
    batches = microbatches(training_split(work), work, stop=work.batch << 20)
    next(batches)
    imported = {name: float(name in sys.modules) for name in ("tensorflow", "jax", "grain")}

    def repeat() -> Figures:
        batches.close()
        return imported

    return repeat
