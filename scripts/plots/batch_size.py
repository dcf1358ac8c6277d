"""Plot top-1 against the batch for each optimizer, from the trials of configs/imagenette_batch.py.

    python scripts/plots/batch_size.py SWEEP --out=docs/images/batch_size.png

SWEEP is the directory of a sweep that has ended, or of a record with its results.csv.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.planning.studies import spread
from largebatch.planning.studies.batch_size import (
    EXAMPLES,
    RULES,
    Trial,
    by_batch,
    complete_top1,
    ended_trials,
)
from largebatch.plots import colours, error_bars, figure, save

_GUESS = 10.0  # per cent, of ten classes


def draw(trials: Sequence[Trial]) -> Any:
    """Return a figure with a line for each optimizer, through the means of the complete trials.

    Bars are one standard deviation over seeds. A cross at the accuracy of a guess is a batch at
    which trials diverged.
    """
    made, (axes,) = figure(1, width=7.2, height=4.2)
    for (name, rule), colour in zip(RULES.items(), colours(4)[1:], strict=True):
        own = [trial for trial in trials if trial["optimizer.name"] == name]
        cells = by_batch(own)
        top1 = [complete_top1(cell) or [math.nan] for cell in cells.values()]  # nan breaks the line
        error_bars(axes, list(cells), [*map(spread, top1)], color=colour, label=rule)
        diverged = list(by_batch(trial for trial in own if trial["state"] == "diverged"))
        axes.plot(diverged, [_GUESS] * len(diverged), "x", color=colour, markersize=8)
    axes.axhline(_GUESS, color="grey", linestyle=":", linewidth=1, label="a guess (×: diverged)")
    sizes = list(by_batch(trials))
    axes.set_xscale("log")
    shares = [f"{size:,}\n{100 * size / EXAMPLES:.2g} %" for size in sizes]
    axes.set_xticks(sizes, shares)
    axes.minorticks_off()
    axes.set_xlabel("batch, and its share of the training images")
    axes.set_ylabel("validation top-1, %")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, loc="upper right")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Draw and write the figure."""
    parser = Parser(__doc__)
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="with results.csv")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    flags = parser.parse_args(arguments)
    trials = ended_trials(flags.sweep)
    if missing := sorted({"optimizer.name", "batch.workers"} - set(trials[0])):
        raise UserError(
            f"{flags.sweep}: expected a sweep of configs/imagenette_batch.py, got one without "
            f"{', '.join(missing)}"
        )
    save(draw(trials), flags.out)
    print(flags.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
