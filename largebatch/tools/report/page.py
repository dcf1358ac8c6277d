"""The page: figures and facts in order, as one file that needs nothing else."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from largebatch.tools.report import palette
from largebatch.tools.report import summary as facts
from largebatch.tools.report.charts import Bars, Chart, Figure, HeatMap
from largebatch.tools.report.differences import Difference, differing, value_text
from largebatch.tools.report.html import bars, figure, listing, section, table, text, tiles
from largebatch.tools.report.maps import LEAST_ROWS
from largebatch.tools.report.runs import Run
from largebatch.tools.report.seeds import groups
from largebatch.tools.report.series import AXES
from largebatch.tools.report.trace import Profile
from largebatch.tools.report.turns import marks

_EVENTS = 500
"""Most rows of a list of events; the last ones are shown."""
_KERNELS = 12
Parts = Mapping[str, Sequence[Figure]]
"""Part of the page (curves, layers, norms, time, events, trace) → its figures."""
_HELP = (
    "Move the pointer over a curve to read values, drag to zoom, double-click to reset; click a "
    "name to hide its curve."
)


def page(title: str, body: str, figures: Sequence[Figure] = ()) -> str:
    """The whole file.

    Args:
        title: of the window.
        body: HTML, in which `data-figure` names figures by their keys.
        figures: charts and heat maps that the script draws.
    """
    colours = "".join(f"--{c.name}:light-dark({c.light},{c.dark});" for c in palette.ALL)
    here = files(__package__)
    style = (here / "uplot" / "uPlot.min.css").read_text() + f"\n:root{{{colours}}}\n"
    style += (here / "page.css").read_text()
    names = ("uplot/LICENSE", "uplot/uPlot.iife.min.js", "page.js")
    licence, library, script = ((here / name).read_text() for name in names)
    drawn = {f.key: f.as_json() for f in figures if not isinstance(f, Bars)}
    data: dict[str, Any] = {"figures": drawn}
    if any(isinstance(found, HeatMap) for found in figures):
        data["heat"] = _heat()
    # Within a script nothing is escaped, so nothing in it may look like its end.
    written = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (not number)}>'
        f"<span>{axis}</span></label>"
        for number, axis in enumerate(AXES)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n"
        f"<script>\n/*\n{licence}*/\n{library}</script>\n"
        f'<script type="application/json" id="data">{written}</script>\n'
        f"<script>\n{script}</script>\n</head>\n<body>\n"
        '<header class="bar"><div class="brand">largebatch <span>report</span></div>'
        '<label class="slider">Smoothing <input type="range" id="smoothing" min="0" max="0.98" '
        'step="0.01" value="0"></label>'
        f"<fieldset><legend>Curves against</legend>{choices}</fieldset>"
        '<button type="button" id="theme" title="Light or dark">Dark</button></header>\n'
        "<noscript><p>Curves and maps need JavaScript; the PNG files beside this page show them "
        "too.</p></noscript>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def single(run: Run, parts: Parts, profile: Profile | None) -> str:
    """Everything about one run.

    Args:
        run: the run.
        parts: its figures.
        profile: of its device, where there is one.
    """
    head = (
        f'<div class="title"><h1>{text(run.name)}</h1>'
        f'<span class="badge {text(run.status)}">{text(run.status)}</span></div>' + _failure(run)
    )
    return (
        head
        + tiles(facts.headline(run))
        + _remarks(run)
        + listing(facts.details(run))
        + section("training", "Training", _curves(parts["curves"]))
        + inner(run, parts, profile)
        + section("options", "Configuration", _options(run))
        + _footer([run])
    )


def several(
    runs: Sequence[Run],
    labels: Sequence[str],
    curves: Sequence[Chart],
    each: Mapping[str, Parts],
    profiles: Mapping[str, Profile],
) -> str:
    """Runs side by side.

    Args:
        runs: two or more.
        labels: a name of each, see `differences.labels`.
        curves: charts that show all of them.
        each: by name of the run, its own figures.
        profiles: by name of the run.
    """
    found = groups(runs)
    body = f'<div class="title"><h1>{len(runs)} runs compared</h1></div>'
    for run, label in zip(runs, labels, strict=True):
        body += _failure(run, f"{label}: ")
    body += table(*facts.results(runs, labels), "Results")
    body += section("training", "Training", _curves(curves))
    if any(len(group) > 1 for group in found):
        lead = (
            '<p class="lead">Runs that differ in run.seed only: mean ± half the width of the 95 % '
            "interval of Student's t, over those that are complete; behind a value, the number of "
            "runs that have it.</p>"
        )
        body += section("over_seeds", "Over seeds", lead + table(*facts.over_seeds(found), "Seeds"))
    body += section("differences", "Differences of configuration", _differences(runs, labels))
    for run, label in zip(runs, labels, strict=True):
        parts = inner(run, each[run.name], profiles.get(run.name), f"{run_key(run)}-")
        body += (
            f'<details class="run"><summary>{text(label)}</summary>'
            + _failure(run)
            + tiles(facts.headline(run))
            + _remarks(run)
            + listing(facts.details(run))
            + parts
            + "</details>"
        )
    return body + _footer(runs)


def inner(run: Run, parts: Parts, profile: Profile | None, prefix: str = "") -> str:
    """The parts that belong to one run: layers, statistics, time, events, trace."""
    few = ""
    if 0 < len(run.layers) < LEAST_ROWS:
        few = (
            f'<p class="lead">Maps of layers over time need {LEAST_ROWS} rows of layers.jsonl; '
            f"this run has {len(run.layers)}. Log more with a shorter run.layers_every.</p>"
        )
    return (
        section(f"{prefix}layers", "Layers", _grid(parts["layers"]) + few)
        + section(f"{prefix}norms", "BatchNorm statistics", _grid(parts["norms"]))
        + section(
            f"{prefix}time",
            "Time and events",
            _grid([*parts["time"], *parts["events"]]) + _events(run),
        )
        + section(f"{prefix}trace", "Device", _trace(profile, parts["trace"]))
    )


def run_key(run: Run) -> str:
    """A run's name as part of an id or of a file's name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in run.name)


def _figure(found: Figure) -> str:
    if isinstance(found, Bars):
        return figure(found.title, found.caption, bars(found))
    kind = "chart" if isinstance(found, Chart) else "map"
    host = f'<div class="{kind}" data-figure="{text(found.key)}"></div>'
    return figure(found.title, found.caption, host)


def _grid(figures: Sequence[Figure]) -> str:
    made = "".join(map(_figure, figures))
    return f'<div class="figures">{made}</div>' if made else ""


def _curves(charts: Sequence[Chart]) -> str:
    return f'<p class="lead">{_HELP}</p>{_grid(charts)}' if charts else ""


def _heat() -> list[str]:
    """The colours of heat maps, from the least to the greatest value."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[palette.HEAT](share / 255)) for share in range(256)]


def _failure(run: Run, label: str = "") -> str:
    reason = facts.failure(run)
    if reason is None:
        return ""
    return f'<p class="failure" role="alert"><b>{text(label)}Failed.</b> {text(reason)}</p>'


def _remarks(run: Run) -> str:
    items = "".join(f"<li>{text(remark)}</li>" for remark in run.remarks)
    return f'<ul class="remarks">{items}</ul>' if items else ""


def _events(run: Run) -> str:
    happened = marks(run.events)
    if not happened:
        return ""
    rows = [
        (mark.kind, facts.moment(mark.time), f"{mark.step:,}", f"{mark.samples:,.0f}", mark.text)
        for mark in happened[-_EVENTS:]
    ]
    left = len(happened) - len(rows)
    title = f"{len(happened)} events" + (f", the last {len(rows)} of them" if left else "")
    made = table(("event", "time", "step", "samples", "what"), rows, title)
    return f'<details class="events" open><summary>{text(title)}</summary>{made}</details>'


def _trace(profile: Profile | None, figures: Sequence[Figure]) -> str:
    if profile is None:
        return ""
    longest = [
        (
            kernel.name,
            kernel.origin.kind,
            f"{1e3 * kernel.seconds:.3f}",
            f"{kernel.count:,}",
            kernel.origin.source or kernel.origin.op_name,
        )
        for kernel in profile.kernels[:_KERNELS]
    ]
    hidden = 100 * profile.hidden_s / profile.window_s
    lead = (
        f"{1e3 * profile.window_s:,.1f} ms of the device were profiled. Collectives ran hidden "
        f"beside other work for {hidden:.1f} % of them. Where the host is the device, its threads "
        "count together."
    )
    head = ("kernel", "class", "ms", "runs", "from")
    made = table(head, longest, "The longest kernels")
    return f'<p class="lead">{text(lead)}</p>' + _grid(figures) + made


def _differences(runs: Sequence[Run], labels: Sequence[str]) -> str:
    found = differing(runs)
    if not found:
        return '<p class="lead">None: all options are alike.</p>'

    def made(some: Sequence[Difference], caption: str) -> str:
        rows = [[each.key, *map(value_text, each.values)] for each in some]
        return table(["option", *labels], rows, caption)

    changing = [each for each in found if each.mathematics is not False]
    rest = [each for each in found if each.mathematics is False]
    body = made(changing, "Differences") if changing else ""
    if rest:
        title = f"{len(rest)} different options that do not change the mathematics"
        body += f"<details><summary>{title}</summary>{made(rest, title)}</details>"
    return body


def _options(run: Run) -> str:
    from largebatch.config.options import options
    from largebatch.config.schema import Config

    default = {key: value_text(_plain(field.default)) for key, _, field in options(Config())}
    chosen = [(key, value_text(value)) for key, value in run.options.items()]
    if not chosen:
        return ""
    changed = [(k, v, default.get(k, facts.NONE)) for k, v in chosen if default.get(k) != v]
    rest = [(k, v) for k, v in chosen if default.get(k) == v]
    return (
        table(("option", "value", "default"), changed, "Options that are not the default")
        + f"<details><summary>{len(rest)} options at their defaults</summary>"
        + table(("option", "value"), rest, "Options at their defaults")
        + "</details>"
    )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _footer(runs: Sequence[Run]) -> str:
    last = max((m.time for run in runs for m in marks(run.events)), default=0.0)
    rows = max((len(run.metrics) for run in runs), default=0)
    newest = f"Last event: {facts.moment(last)}. " if last else ""
    return f"<footer>{text(newest)}Up to {rows:,} rows of a log were read.</footer>"
