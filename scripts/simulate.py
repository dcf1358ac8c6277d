"""Fit the cost model to published runs, and show what it says without any hardware.

    python scripts/simulate.py
    python scripts/simulate.py --out=.

Fits its parameters, holds out every published run once, predicts the record, and studies buckets,
algorithms of the all-reduce, scaling and stragglers. Without --out nothing is written. With it the
record, the pictures, the page docs/cost-model.md and the parameters that
largebatch.planning.prediction reads are written under that folder and listed; --out=. replaces
those of this checkout. With --from only the pictures and the page are written, from a record.
"""

import datetime
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import environment, write
from pages.cost_model import page
from pages.markdown import percent
from plots.cost_model import draw
from rich.console import Console
from rich.table import Table

from largebatch.cli import Parser
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent
from largebatch.planning import prediction, simulation

RECORD = Path("records") / "2026-11-21_cost_model.json"
PAGE = Path("docs") / "cost-model.md"
PICTURES = Path("docs") / "images"
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
        "--from", dest="record", type=Path, help="a record, to draw and write up without fitting"
    )
    return made


def run(command: str) -> tuple[dict[str, Any], str]:
    """All studies.

    Returns:
      The record, and the text of ``fitted.toml``.
    """
    began = time.monotonic()
    studies, parameters = simulation.all_studies()
    found = studies["calibration"]
    fitted = prediction.Fitted(parameters, found["error"], found["unseen_error"])
    kept = {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "environment": environment(),
        "seconds": round(time.monotonic() - began, 1),
        "studies": studies,
    }
    return kept, prediction.fitted_text(fitted)


def check_pictures() -> None:
    """Refuse to begin what could not be drawn at the end.

    Raises:
      ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the pictures need matplotlib, which is not installed: pip install it")


def read(path: Path) -> dict[str, Any]:
    """A record that ``run`` made.

    Raises:
      ConfigError: no such file, or it is no record of these studies.
    """
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--from {path} cannot be read ({error}); leave it out to fit") from error
    if not isinstance(kept, dict) or "calibration" not in kept.get("studies", {}):
        raise ConfigError(f"--from {path} is no record of scripts/simulate.py; leave it out to fit")
    return kept


def show(studies: dict[str, Any], console: Console) -> None:
    """The calibration and the record on the console."""
    table = Table("run", "devices", "published", "predicted", "error", "family held out")
    for column in table.columns[1:]:
        column.justify = "right"
    found = studies["calibration"]
    for row in found["rows"]:
        table.add_row(
            row["run"],
            f"{row['devices']:,}",
            f"{row['published']:,.0f}",
            f"{row['predicted']:,.0f}",
            percent(row["error"]),
            percent(row["family_error"]),
        )
    console.print(table)
    median, worst = (100 * found[name] for name in ("median_error", "worst_error"))
    console.print(f"median {median:.1f} %, worst {worst:.1f} %")
    fujitsu = studies["fujitsu"]
    sister, record = fujitsu["sister"], fujitsu["record"]["90"]
    console.print(f"Fujitsu v0.6: {sister['clock_s']:.1f} s ({percent(fujitsu['sister_error'])})")
    console.print(
        f"Fujitsu 81,920: {record['clock_s']:.1f} s ({percent(fujitsu['record_error']['90'])})"
    )
    console.print(f"best backups of 100 machines: {studies['arrivals']['backups']['best']}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: simulate(sys.argv[1:] if arguments is None else list(arguments)))


def simulate(given: Sequence[str]) -> None:
    """Fit or read, then draw and write."""
    options = parser().parse_args(given)
    console = Console()
    written: list[Path] = []
    if options.out:
        check_pictures()
        for path in (RECORD, PAGE, PICTURES / "any.png", FITTED):
            check_parent(options.out / path)
    if options.record:
        kept = read(options.record)
    else:
        kept, fitted = run(shlex.join(["python", "scripts/simulate.py", *given]))
        if options.out:
            write(options.out / RECORD, kept)
            (options.out / FITTED).parent.mkdir(parents=True, exist_ok=True)
            (options.out / FITTED).write_text(fitted)
            written += [options.out / RECORD, options.out / FITTED]
    show(kept["studies"], console)
    if options.out:
        written += draw(kept["studies"], options.out / PICTURES)
        (options.out / PAGE).parent.mkdir(parents=True, exist_ok=True)
        (options.out / PAGE).write_text(page(kept), encoding="utf-8")
        written.append(options.out / PAGE)
    for path in written:
        print(f"wrote {path}")
    if not written:
        print("nothing is written; --out=DIR writes the record, the pictures and the page")


if __name__ == "__main__":
    sys.exit(main())
