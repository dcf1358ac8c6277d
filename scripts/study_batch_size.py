"""Train one small model at batches from 2 % to all of the data set; report accuracy.

    python scripts/study_batch_size.py --json=records/batch_size.json --images=docs/images

SGD with linear scaling against LARS, with and without warm-up, label smoothing and precise
BatchNorm statistics, at equal epochs, by the trainer itself on scikit-learn's digits.
"""

import sys
from collections.abc import Sequence

import studies

from largebatch.studies import batch_size, batch_size_plots


def main(arguments: Sequence[str]) -> int:
    """Run the study, or draw a record of it."""
    flags = studies.parser(__doc__).parse_args(arguments)
    with studies.errors():
        studies.check_files(flags)
        if flags.draw:
            return studies.draw(flags, batch_size_plots.DRAWINGS)
        grid, arms = batch_size.quick() if flags.quick else batch_size.full()
        kept = batch_size.measure(grid, arms, studies.seeds(flags), studies.say)
        studies.say(batch_size.tables(kept))
        return studies.finish(
            flags, kept, batch_size_plots.DRAWINGS, "study_batch_size.py", arguments
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
