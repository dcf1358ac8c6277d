"""Write the report of one or several runs: the page, and a PNG file of each figure."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from largebatch.errors import DataError
from largebatch.files import check_parent, replacing
from largebatch.tools.report import page, png, summary, trace
from largebatch.tools.report.runs import PAGE, Run, load
from largebatch.tools.report.trace import Profile


def report(
    paths: Sequence[Path], out: Path | None = None, profile: Profile | None = None
) -> tuple[Path, tuple[Run, ...]]:
    """Read runs and write `report.html`, with a PNG of each figure beside it.

    Args:
        paths: directories of runs.
        out: folder to write to; None: `report/` in the run or, for several runs, in the folder that
            holds them all.
        profile: a profile to show with a single run; None: the one in its `profile/`, if any.

    Returns:
        The path of the page, and the runs.

    Raises:
        DataError: a path is not the directory of a run, or a profile is given with several.
        UserError: `out` cannot be written.
    """
    runs = load(paths)
    if all(run.trial for run in runs):
        runs = tuple(sorted(runs, key=summary.rank))
    if profile is not None and len(runs) > 1:
        raise DataError(f"--trace: expected one RUN, got {len(runs)}; give one, or omit --trace")
    out = out or beside([run.path for run in runs])
    check_parent(out / PAGE)
    read = [_with_profile(run, profile) for run in runs]
    runs = tuple(run for run, _ in read)
    if len(runs) == 1:
        made = page.single(*read[0])
    else:
        made = page.several(runs, {run.name: found for run, found in read})
    for figure in made.figures:
        png.write(figure, out / f"{figure.key}.png")
    with replacing(out / PAGE) as stream:
        stream.write(made.html().encode())
    return out / PAGE, runs


def beside(paths: Sequence[Path]) -> Path:
    """Return `report/` in the only path, or in the folder that holds them all."""
    common = os.path.commonpath([path.resolve() for path in paths])
    return (paths[0] if len(paths) == 1 else Path(common)) / "report"


def _with_profile(run: Run, given: Profile | None) -> tuple[Run, Profile | None]:
    """Return a run and its profile; a damaged profile is a remark."""
    if given is not None or not (run.path / "profile").is_dir():
        return run, given
    try:
        return run, trace.read(run.path)
    except DataError as error:
        return dataclasses.replace(run, remarks=(*run.remarks, f"{error}.")), None
