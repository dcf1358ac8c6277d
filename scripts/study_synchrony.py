"""Train one small model with synchronous, backup-worker and asynchronous updates.

    python scripts/study_synchrony.py --json=records/synchrony.json --images=docs/images

Waiting for all, dropping the slowest, backup workers, deadlines, and asynchronous updates, on
scikit-learn's digits. Time is simulated from sampled worker times; accuracy is that of real
training.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header, read_record
from pages import studies
from plots.synchrony import FIGURES

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.planning.studies import policies
from largebatch.planning.studies.synchrony import open_study
from largebatch.plots import draw_all


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run the study, or draw a record of it."""
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, one seed")
    parser.add_argument("--seeds", help="with commas between (0,1,2; quick: 0)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--images", type=Path, help="folder to draw the figures into")
    parser.add_argument(
        "--draw", type=Path, help="a record to draw again into --images, instead of a study"
    )
    flags = parser.parse_args(arguments)
    for path in (flags.json, flags.images and flags.images / "any.png"):
        if path:
            check_parent(path)
    if flags.draw:
        if not flags.images:
            raise ConfigError("--draw: expected --images with it, such as --images=docs/images")
        kept = read_record("--draw", flags.draw, "arrivals", "policies")
    else:
        measured = measure(flags.quick, _seeds(flags.seeds, flags.quick))
        kept = header("study_synchrony.py", arguments) | measured
        if flags.json:
            write_json(flags.json, kept)
    if flags.images:
        for path in draw_all(dict(FIGURES), kept, flags.images):
            print(f"wrote {path}", flush=True)


def measure(quick: bool, seeds: list[int]) -> dict[str, Any]:
    """Train every policy, or a few steps of each kind, and print the results."""
    setup, chosen = policies.quick() if quick else policies.full()

    def report(text: str) -> None:
        print(text, flush=True)

    kept = policies.measure(open_study(setup), chosen, seeds, report)
    report(studies.synchrony(kept))
    return kept


def _seeds(text: str | None, quick: bool) -> list[int]:
    text = text or ("0" if quick else "0,1,2")
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"--seeds: expected integers from 0 with commas between, got {text}")
    return [int(word) for word in words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
