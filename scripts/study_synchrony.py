"""Train one small model with synchronous, backup-worker and asynchronous updates.

    python scripts/study_synchrony.py --json=records/synchrony.json --images=docs/images

Waiting for all, dropping the slowest, backup workers, deadlines, and asynchronous updates, on
scikit-learn's digits. Time is simulated from sampled worker times; accuracy is that of real
training.
"""

import sys
from collections.abc import Sequence
from typing import Any

from pages import studies
from planning import study
from plots.studies import SYNCHRONY

from largebatch.planning.studies import policies
from largebatch.planning.studies.synchrony import open_study


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return study.main(__doc__, "study_synchrony.py", measure, SYNCHRONY, arguments)


def measure(quick: bool, seeds: list[int]) -> dict[str, Any]:
    """Train every policy, or a few steps of each kind, and print the results."""
    setup, chosen = policies.quick() if quick else policies.full()
    kept = policies.measure(open_study(setup), chosen, seeds, study.say)
    study.say(studies.synchrony(kept))
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
