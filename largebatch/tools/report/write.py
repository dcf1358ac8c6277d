"""From directories of runs to a page and PNG files on disk."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from largebatch.errors import DataError
from largebatch.files import check_parent, replacing
from largebatch.tools.report import curves, differences, maps, page, png, seeds, trace
from largebatch.tools.report import summary as facts
from largebatch.tools.report.charts import Figure
from largebatch.tools.report.runs import Run, load
from largebatch.tools.report.trace import Profile

PAGE = "report.html"


def report(
    paths: Sequence[Path], out: Path | None = None, profile: Profile | None = None
) -> tuple[Path, tuple[Run, ...]]:
    """Reads runs and writes `report.html`, with a PNG of each figure beside it.

    Args:
        paths: directories of runs.
        out: where to; None: `report/` in the run or, of several, in the folder that holds them all.
        profile: to show with a single run; None: that in its `profile/`, if any.

    Returns:
        The page, and the runs.

    Raises:
        DataError: a directory is none of a run, or a profile is given with several.
        UserError: `out` cannot be written.
    """
    runs = load(paths)
    if profile is not None and len(runs) > 1:
        raise DataError("--trace goes with one run; name one, or leave --trace out")
    out = out or _place(runs) / "report"
    check_parent(out / PAGE)
    read = [_with_profile(run, profile) for run in runs]
    runs = tuple(run for run, _ in read)
    profiles = {run.name: found for run, found in read if found is not None}
    each = {run.name: _of_run(run, profiles.get(run.name)) for run in runs}
    if len(runs) == 1:
        (run,) = runs
        parts = {"curves": curves.figures(runs, [run.name])} | each[run.name]
        figures = [figure for part in parts.values() for figure in part]
        body, title = page.single(run, parts, profiles.get(run.name)), run.name
    else:
        labels = _marked(differences.labels(runs), facts.best(runs))
        together = curves.figures(runs, labels)
        spread = curves.over_seeds(seeds.groups(runs))
        together += [spread] if spread else []
        own = {
            run.name: {
                part: [
                    dataclasses.replace(figure, key=f"{page.run_key(run)}-{figure.key}")
                    for figure in figures
                ]
                for part, figures in each[run.name].items()
            }
            for run in runs
        }
        every = [f for parts in own.values() for part in parts.values() for f in part]
        figures = [*together, *every]
        body = page.several(runs, labels, together, own, profiles)
        title = f"{len(runs)} runs compared"
    for figure in figures:
        png.write(figure, out / f"{figure.key}.png")
    with replacing(out / PAGE) as stream:
        stream.write(page.page(title, body, figures).encode())
    return out / PAGE, runs


def _marked(labels: Sequence[str], best: int | None) -> list[str]:
    """Labels, of which that of the best run has a star."""
    return [f"{label} ★" if index == best else label for index, label in enumerate(labels)]


def _of_run(run: Run, profile: Profile | None) -> dict[str, list[Figure]]:
    """Its own figures by part of the page."""
    found = maps.of_layers(run)
    time, events = maps.of_time(run), curves.of_events(run)
    return {
        "layers": [figure for figure in found if not figure.key.startswith("bn_")],
        "norms": [figure for figure in found if figure.key.startswith("bn_")],
        "time": [time] if time else [],
        "events": [events] if events else [],
        "trace": [maps.of_trace(profile.split)] if profile else [],
    }


def _with_profile(run: Run, given: Profile | None) -> tuple[Run, Profile | None]:
    """A run and the profile that belongs to it; one that is damaged is a remark."""
    if given is not None or not (run.path / "profile").is_dir():
        return run, given
    try:
        return run, trace.read(run.path)
    except DataError as error:
        return dataclasses.replace(run, remarks=(*run.remarks, f"{error}.")), None


def _place(runs: Sequence[Run]) -> Path:
    """The run's directory, or that of all."""
    if len(runs) == 1:
        return runs[0].path
    return Path(os.path.commonpath([run.path.resolve() for run in runs]))
