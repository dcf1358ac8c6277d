"""Write the report of one or several runs: the page, and a PNG file of each figure."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from largebatch.errors import DataError
from largebatch.files import check_parent, replacing
from largebatch.tools.report import charts, compare, maps, page, png, summary, trace
from largebatch.tools.report.figures import Figure
from largebatch.tools.report.runs import Run, load
from largebatch.tools.report.trace import Profile

PAGE = "report.html"


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
    if profile is not None and len(runs) > 1:
        raise DataError(f"--trace: expected one RUN, got {len(runs)}; give one, or omit --trace")
    common = os.path.commonpath([run.path.resolve() for run in runs])
    out = out or (runs[0].path if len(runs) == 1 else Path(common)) / "report"
    check_parent(out / PAGE)
    read = [_with_profile(run, profile) for run in runs]
    runs = tuple(run for run, _ in read)
    profiles = {run.name: found for run, found in read if found is not None}
    each = {run.name: _of_run(run, profiles.get(run.name)) for run in runs}
    if len(runs) == 1:
        (run,) = runs
        parts = {"training": charts.of_training(runs, [run.name])} | each[run.name]
        figures = [figure for part in parts.values() for figure in part]
        body, title = page.single(run, parts, profiles.get(run.name)), run.name
    else:
        best = summary.best(runs)
        labels = [
            f"{label} ★" if i == best else label for i, label in enumerate(compare.labels(runs))
        ]
        together = charts.of_training(runs, labels)
        spread = charts.over_seeds(compare.groups(runs))
        together += [spread] if spread else []
        each = {run.name: _keyed(each[run.name], page.run_key(run)) for run in runs}
        own = [figure for parts in each.values() for part in parts.values() for figure in part]
        figures = [*together, *own]
        body = page.several(runs, labels, together, each, profiles)
        title = f"{len(runs)} runs compared"
    for figure in figures:
        png.write(figure, out / f"{figure.key}.png")
    with replacing(out / PAGE) as stream:
        stream.write(page.page(title, body, figures).encode())
    return out / PAGE, runs


def _of_run(run: Run, profile: Profile | None) -> dict[str, list[Figure]]:
    """Return the figures of one run by part of the page."""
    layers = maps.of_layers(run)
    time = charts.of_time(run)
    return {
        "layers": [figure for figure in layers if not figure.key.startswith("bn_")],
        "statistics": [figure for figure in layers if figure.key.startswith("bn_")],
        "time": [time] if time else [],
        "trace": [charts.of_trace(profile.split)] if profile else [],
    }


def _keyed(parts: dict[str, list[Figure]], prefix: str) -> dict[str, list[Figure]]:
    """Return figures whose keys begin with the run's, since a page holds several runs."""
    return {
        part: [dataclasses.replace(each, key=f"{prefix}-{each.key}") for each in some]
        for part, some in parts.items()
    }


def _with_profile(run: Run, given: Profile | None) -> tuple[Run, Profile | None]:
    """Return a run and its profile; a damaged profile is a remark."""
    if given is not None or not (run.path / "profile").is_dir():
        return run, given
    try:
        return run, trace.read(run.path)
    except DataError as error:
        return dataclasses.replace(run, remarks=(*run.remarks, f"{error}.")), None
