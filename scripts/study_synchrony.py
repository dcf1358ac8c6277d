"""Train one small model under many rules of who waits for whom; report accuracy and time.

    python scripts/study_synchrony.py --json=records/synchrony.json --images=docs/images

Waiting for all, dropping the slowest, backup workers, deadlines, and asynchronous updates, on
scikit-learn's digits. Time is simulated from sampled worker times, accuracy is trained for real.
"""

import sys
from collections.abc import Sequence

import studies

from largebatch.studies import synchrony_plots, synchrony_record
from largebatch.studies.synchrony import open_study


def main(arguments: Sequence[str]) -> int:
    """Run the study, or draw a record of it."""
    flags = studies.parser(__doc__).parse_args(arguments)
    with studies.errors():
        studies.check_files(flags)
        if flags.draw:
            return studies.draw(flags, synchrony_plots.DRAWINGS)
        setup, policies = synchrony_record.quick() if flags.quick else synchrony_record.full()
        seeds = studies.seeds(flags)
        kept = synchrony_record.measure(open_study(setup), policies, seeds, studies.say)
        studies.say(synchrony_record.table(kept))
        return studies.finish(
            flags, kept, synchrony_plots.DRAWINGS, "study_synchrony.py", arguments
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
