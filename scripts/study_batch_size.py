"""Train one small model at batches from 2 % to 100 % of the dataset; report accuracy.

    python scripts/study_batch_size.py --json=records/batch_size.json --images=docs/images

SGD with linear scaling against LARS, with and without warm-up, label smoothing and precise
BatchNorm statistics, at equal epochs, by the trainer itself on scikit-learn's digits.
"""

import sys
from collections.abc import Sequence
from typing import Any

from pages import studies
from planning import study
from plots.studies import BATCH_SIZE

from largebatch.planning.studies import batch_size


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return study.main(__doc__, "study_batch_size.py", measure, BATCH_SIZE, arguments)


def measure(quick: bool, seeds: list[int]) -> dict[str, Any]:
    """Train the whole grid, or a little of it, and print the results."""
    grid, arms = batch_size.quick() if quick else batch_size.full()
    kept = batch_size.measure(grid, arms, seeds, study.say)
    for key, statistics in (("top1", "precise"), ("top1_ema", "moving average")):
        study.say(f"\nTop-1, %, BatchNorm statistics: {statistics}\n")
        study.say(studies.batch_size(kept, key))
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
