"""From directories of runs to a page and pictures on disk."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from largebatch.errors import DataError
from largebatch.files import check_parent, replacing
from largebatch.report import canvas, curves, maps, page, seeds, trace
from largebatch.report.canvas import Drawing
from largebatch.report.runs import Run, load
from largebatch.report.trace import Profile

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
        parts = {"curves": curves.figures(runs)} | each[run.name]
        drawn = _drawn([d for part in parts.values() for d in part], out)
        body, title = page.single(run, parts, drawn, profiles.get(run.name)), run.name
    else:
        together = curves.figures(runs)
        spread = curves.over_seeds(seeds.groups(runs))
        together += [spread] if spread else []
        own = {
            run.name: {
                part: [d._replace(key=f"{page.run_key(run)}-{d.key}") for d in drawings]
                for part, drawings in each[run.name].items()
            }
            for run in runs
        }
        every = [d for parts in own.values() for part in parts.values() for d in part]
        drawn = _drawn([*together, *every], out)
        body = page.several(runs, together, own, drawn, profiles)
        title = f"{len(runs)} runs compared"
    with replacing(out / PAGE) as stream:
        stream.write(page.page(title, body).encode())
    return out / PAGE, runs


def _of_run(run: Run, profile: Profile | None) -> dict[str, list[Drawing]]:
    """Its own figures by part of the page."""
    found = maps.of_layers(run)
    time, events = maps.of_time(run), maps.of_events(run)
    return {
        "layers": [drawing for drawing in found if not drawing.key.startswith("bn_")],
        "norms": [drawing for drawing in found if drawing.key.startswith("bn_")],
        "time": [time] if time else [],
        "events": [events] if events else [],
        "trace": [maps.of_trace(profile.split)] if profile else [],
    }


def _drawn(drawings: Sequence[Drawing], out: Path) -> Mapping[str, list[tuple[str, str]]]:
    """Each figure as SVG against each of its axes, and as PNG against the first of them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for drawing in drawings:
        for axis in drawing.axes or ("",):
            with canvas.styled():
                made = drawing.draw(axis)
            key = f"{drawing.key}-{axis}".strip("-").replace(".", "-")
            picture = canvas.svg(made, key, f"{drawing.title}: {drawing.caption}")
            if drawing.key not in found:
                canvas.png(made, drawing.title, out / f"{drawing.key}.png")
            found.setdefault(drawing.key, []).append((axis, picture))
    return found


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
