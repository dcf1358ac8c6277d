"""Train one small model under many rules of who waits for whom; report accuracy and time.

    python scripts/study_synchrony.py --json=records/synchrony.json --images=docs/images

Waiting for all, dropping the slowest, backup workers, deadlines, and asynchronous updates, on
scikit-learn's digits. Time is simulated from sampled worker times, accuracy is trained for real.
"""

import sys
from collections.abc import Sequence

from studying import study

from largebatch.fault_tolerance import exit_code
from largebatch.planning.studies import synchrony_plots, synchrony_record
from largebatch.planning.studies.synchrony import open_study


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run the study, or draw a record of it."""
    flags = study.parser(__doc__).parse_args(arguments)
    study.check_files(flags)
    if flags.draw:
        study.draw(flags, synchrony_plots.DRAWINGS)
        return
    setup, policies = synchrony_record.quick() if flags.quick else synchrony_record.full()
    seeds = study.seeds(flags)
    kept = synchrony_record.measure(open_study(setup), policies, seeds, study.say)
    study.say(synchrony_record.table(kept))
    study.finish(flags, kept, synchrony_plots.DRAWINGS, "study_synchrony.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
