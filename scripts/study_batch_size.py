"""Train one small model at batches from 2 % to all of the data set; report accuracy.

    python scripts/study_batch_size.py --json=records/batch_size.json --images=docs/images

SGD with linear scaling against LARS, with and without warm-up, label smoothing and precise
BatchNorm statistics, at equal epochs, by the trainer itself on scikit-learn's digits.
"""

import sys
from collections.abc import Sequence

from studying import study

from largebatch.fault_tolerance import exit_code
from largebatch.planning.studies import batch_size, batch_size_plots


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run the study, or draw a record of it."""
    flags = study.parser(__doc__).parse_args(arguments)
    study.check_files(flags)
    if flags.draw:
        study.draw(flags, batch_size_plots.DRAWINGS)
        return
    grid, arms = batch_size.quick() if flags.quick else batch_size.full()
    kept = batch_size.measure(grid, arms, study.seeds(flags), study.say)
    study.say(batch_size.tables(kept))
    study.finish(flags, kept, batch_size_plots.DRAWINGS, "study_batch_size.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
