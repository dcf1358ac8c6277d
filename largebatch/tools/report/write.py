"""Write the report of one or several runs."""

import os
from collections.abc import Sequence
from pathlib import Path

from largebatch.files import check_parent, replacing
from largebatch.tools.report import page, summary
from largebatch.tools.report.runs import PAGE, Run, load


def report(paths: Sequence[Path], out: Path | None = None) -> tuple[Path, tuple[Run, ...]]:
    """Read runs and write `report.html`.

    Args:
        paths: directories of runs.
        out: folder to write to; None: `report/` in the run or, for several runs, in the folder that
            holds them all.

    Returns:
        The path of the page, and the runs.

    Raises:
        DataError: a path is not the directory of a run.
        UserError: `out` cannot be written.
    """
    runs = load(paths)
    if all(run.trial for run in runs):
        runs = tuple(sorted(runs, key=summary.rank))
    out = out or beside([run.path for run in runs])
    check_parent(out / PAGE)
    made = page.single(runs[0]) if len(runs) == 1 else page.several(runs)
    with replacing(out / PAGE) as stream:
        stream.write(made.html().encode())
    return out / PAGE, runs


def beside(paths: Sequence[Path]) -> Path:
    """Return `report/` in the only path, or in the folder that holds them all."""
    common = os.path.commonpath([path.resolve() for path in paths])
    return (paths[0] if len(paths) == 1 else Path(common)) / "report"
