"""Train one small model with synchronous, backup-worker and asynchronous updates.

    python scripts/study_synchrony.py --json=records/synchrony.json

Waiting for all, dropping the slowest, backup workers, deadlines, and asynchronous updates, on
scikit-learn's digits. Time is simulated from sampled worker times; accuracy is that of real
training.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import header

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.planning.studies import policies
from largebatch.planning.studies.synchrony import open_study


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Train every policy, or a few steps of each kind; print and write the results."""
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, one seed")
    parser.add_argument("--seeds", help="with commas between (0,1,2; quick: 0)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    flags = parser.parse_args(arguments)
    if flags.json:
        check_parent(flags.json)
    seeds = _seeds(flags.seeds or ("0" if flags.quick else "0,1,2"))
    setup, chosen = policies.quick() if flags.quick else policies.full()
    measured = policies.measure(open_study(setup), chosen, seeds, partial(print, flush=True))
    if flags.json:
        write_json(flags.json, header("study_synchrony.py", arguments) | measured)


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"--seeds: expected integers from 0 with commas between, got {text}")
    return [int(word) for word in words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
