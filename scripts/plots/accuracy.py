"""Plot validation accuracy against epochs, a curve for each recipe: mean and deviation over seeds.

    python scripts/plots/accuracy.py --out=docs/images/imagenette.png \
        'batch 64, SGD=records/2026-11-23_imagenette_laptop_cpu' 'batch 608, LARS=runs/a,runs/b'

A curve is NAME=RUN,RUN,…; each is the directory of a run, or of a record with metrics_SEED.jsonl.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.cli import Parser
from largebatch.errors import ConfigError, UserError
from largebatch.fault_tolerance import exit_code
from largebatch.plots import band, colours, figure, save
from largebatch.tracking import read_rows

TOP1 = "validation/top1"


def read(folders: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the evaluations that all runs have, and the last one of each.

    Returns:
      Epochs, (evaluations,); top-1 as fractions, (runs, evaluations); last top-1, (runs,).

    Raises:
      UserError: no metrics in a directory, or no evaluation that all have.
    """
    found = []
    for folder in folders:
        files = sorted(folder.glob("metrics*.jsonl"))
        if not files:
            raise UserError(f"{folder}: no metrics.jsonl; use the directory of a run or a record")
        found += [{row["epoch"]: row[TOP1] for row in read_rows(f) if TOP1 in row} for f in files]
    epochs = sorted(set.intersection(*map(set, found)))
    if not epochs:
        raise UserError(f"{', '.join(map(str, folders))}: no evaluation that all runs have")
    common = [[run[epoch] for epoch in epochs] for run in found]
    return np.array(epochs), np.array(common), np.array([run[max(run)] for run in found])


def draw(curves: dict[str, Sequence[Path]]) -> Any:
    """Return a figure with a curve for each name; bands are one standard deviation over runs."""
    made, (axes,) = figure(1, width=7.2)
    for (name, folders), colour in zip(curves.items(), colours(len(curves) + 1)[1:], strict=True):
        epochs, top1, final = read(folders)
        deviation = top1.std(0, ddof=1) if len(top1) > 1 else None
        seeds = f", {len(top1)} seeds" if len(top1) > 1 else ""
        last = f"{name}{seeds}: {100 * final.mean():.1f} %"
        band(axes, epochs, top1.mean(0), deviation, color=colour, label=last)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation top-1, %")
    axes.set_xlim(0, None)
    axes.legend(frameon=False, loc="lower right")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Draw and write the figure."""
    parser = Parser(__doc__)
    parser.add_argument("curves", nargs="+", help="NAME=RUN,RUN,…")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    flags = parser.parse_args(arguments)
    curves: dict[str, Sequence[Path]] = {}
    for curve in flags.curves:
        name, sign, folders = curve.rpartition("=")
        if not sign:
            raise ConfigError(f"{curve!r}: expected NAME=RUN,RUN,…; give the curve a name")
        if name in curves:
            raise ConfigError(f"{name!r} names two curves; give each curve a name of its own")
        curves[name] = [Path(folder) for folder in folders.split(",")]
    save(draw(curves), flags.out)
    print(flags.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
