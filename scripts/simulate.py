"""Fit the cost model to published runs, and show its predictions without any hardware.

    python scripts/simulate.py
    python scripts/simulate.py --out=.

Fits the parameters, holds out every published run once, predicts the record, and studies buckets,
algorithms of the all-reduce, scaling and stragglers. Without --out nothing is written. With it the
record, the figures, the tables of docs/cost-model.md and the parameters that
largebatch.planning.prediction reads are written under that folder; --out=. replaces those of this
checkout. With --from only the figures and the page are written, from a record.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header, read_record
from pages.cost_model import page
from pages.markdown import percent
from plots.cost_model import draw
from rich.console import Console
from rich.table import Table

from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.planning import prediction, simulation

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path("records") / "2026-11-21_cost_model.json"
PAGE = Path("docs") / "cost-model.md"
IMAGES = Path("docs") / "images"
FITTED = Path("largebatch") / "planning" / "fitted.toml"


def parser() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_argument(
        "--out",
        type=Path,
        help="folder for records/, docs/ and largebatch/planning/fitted.toml (nothing is written)",
    )
    made.add_argument(
        "--from", dest="record", type=Path, help="a record to draw and tabulate without fitting"
    )
    return made


def run(arguments: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run all studies; return the record and the text of ``fitted.toml``."""
    studies, parameters = simulation.all_studies()
    found = studies["calibration"]
    fitted = prediction.Fitted(parameters, found["error"], found["unseen_error"])
    kept = header("simulate.py", arguments) | {"studies": studies}
    return kept, prediction.fitted_text(fitted)


def show(studies: dict[str, Any], console: Console) -> None:
    """Print the calibration and the prediction of the record."""
    table = Table("run", "devices", "published", "predicted", "error", "family held out")
    for column in table.columns[1:]:
        column.justify = "right"
    found, fujitsu = studies["calibration"], studies["fujitsu"]
    for row in found["rows"]:
        counts = (f"{row['devices']:,}", f"{row['published']:,.0f}", f"{row['predicted']:,.0f}")
        table.add_row(row["run"], *counts, percent(row["error"]), percent(row["family_error"]))
    console.print(table)
    median, worst = (100 * found[name] for name in ("median_error", "worst_error"))
    sister, record = fujitsu["sister"], fujitsu["record"]["90"]
    console.print(f"median {median:.1f} %, worst {worst:.1f} %")
    console.print(f"Fujitsu v0.6: {sister['clock_s']:.1f} s ({percent(fujitsu['sister_error'])})")
    console.print(
        f"Fujitsu 81,920: {record['clock_s']:.1f} s ({percent(fujitsu['record_error']['90'])})"
    )
    console.print(f"best backups of 100 machines: {studies['arrivals']['backups']['best']}")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: simulate(arguments))


def simulate(arguments: Sequence[str]) -> None:
    """Fit or read a record, then print, draw and write.

    Raises:
      ConfigError: the record cannot be read, or a file cannot be written.
    """
    options = parser().parse_args(arguments)
    if out := options.out:
        for path in (RECORD, PAGE, IMAGES / "any.png", FITTED):
            check_parent(out / path)
    if options.record:
        kept, fitted = read_record("--from", options.record, "studies.calibration"), ""
    else:
        kept, fitted = run(arguments)
    show(kept["studies"], Console())
    if not out:
        print("nothing is written; --out=DIR writes the record, the figures and the page")
        return
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    (out / PAGE).write_text(page(text, kept), encoding="utf-8")
    written = [out / PAGE, *draw(kept["studies"], out / IMAGES)]
    if not options.record:
        write_json(out / RECORD, kept)
        (out / FITTED).write_text(fitted, encoding="utf-8")
        written += [out / RECORD, out / FITTED]
    for path in written:
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
