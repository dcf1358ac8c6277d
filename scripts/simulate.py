"""Fit the cost model to published runs, and show its predictions without any hardware.

    python scripts/simulate.py
    python scripts/simulate.py --out=.

Fits the parameters, holds out every published run once, predicts the record, and studies buckets,
algorithms of the all-reduce, scaling and stragglers. Without --out nothing is written. With it the
record and the parameters that largebatch.planning.prediction reads are written under that folder;
--out=. replaces those of this checkout.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header
from rich.console import Console
from rich.table import Table

from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.planning import prediction, simulation

RECORD = Path("records") / "2026-11-21_cost_model.json"
FITTED = Path("largebatch") / "planning" / "fitted.toml"


def show(studies: dict[str, Any], console: Console) -> None:
    """Print the calibration and the prediction of the record."""
    table = Table("run", "devices", "published", "predicted", "error", "family held out")
    for column in table.columns[1:]:
        column.justify = "right"
    found, fujitsu = studies["calibration"], studies["fujitsu"]
    for row in found["rows"]:
        counts = (f"{row['devices']:,}", f"{row['published']:,.0f}", f"{row['predicted']:,.0f}")
        table.add_row(row["run"], *counts, f"{row['error']:+.1%}", f"{row['family_error']:+.1%}")
    console.print(table)
    median, worst = (100 * found[name] for name in ("median_error", "worst_error"))
    sister, record = fujitsu["sister"], fujitsu["record"]["90"]
    console.print(f"median {median:.1f} %, worst {worst:.1f} %")
    console.print(f"Fujitsu v0.6: {sister['clock_s']:.1f} s ({fujitsu['sister_error']:+.1%})")
    console.print(
        f"Fujitsu 81,920: {record['clock_s']:.1f} s ({fujitsu['record_error']['90']:+.1%})"
    )
    console.print(f"best backups of 100 machines: {studies['arrivals']['backups']['best']}")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: simulate(arguments))


def simulate(arguments: Sequence[str]) -> None:
    """Fit, print and write.

    Raises:
      ConfigError: a file cannot be written.
    """
    parser = Parser(__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for records/ and largebatch/planning/fitted.toml (nothing is written)",
    )
    out = parser.parse_args(arguments).out
    for path in (RECORD, FITTED) if out else ():
        check_parent(out / path)
    studies, parameters = simulation.all_studies()
    show(studies, Console())
    if not out:
        print("nothing is written; --out=DIR writes the record and the fitted parameters")
        return
    found = studies["calibration"]
    fitted = prediction.Fitted(parameters, found["error"], found["unseen_error"])
    write_json(out / RECORD, header("simulate.py", arguments) | {"studies": studies})
    (out / FITTED).write_text(prediction.fitted_text(fitted), encoding="utf-8")
    for path in (RECORD, FITTED):
        print(f"wrote {out / path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
