"""The page: one HTML file without references to other files, in which uPlot draws the curves."""

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from largebatch.config.schema import Config, options
from largebatch.files import check_parent, replacing
from largebatch.tools.report import charts, summary, trials
from largebatch.tools.report.charts import Bars, Chart, Drawing, Figure
from largebatch.tools.report.compare import (
    NONE,
    Difference,
    dataset,
    differing,
    groups,
    labels,
    value_text,
)
from largebatch.tools.report.runs import AXES, PAGE, Run, load, marks
from largebatch.tools.report.summary import Cell, failure

_EVENTS = 500
"""Most rows of a list of events; the last ones are shown."""
_COLUMNS = 8
"""Most runs that are columns of a table of options; more are its rows."""
_HELP = (
    "Move the pointer over a curve to read values, drag to zoom, double-click to reset; click a "
    "name to hide its curve."
)
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$plot_style
$style</style>
<script>
/*
$licence*/
$plot</script>
<script type="application/json" id="data">$data</script>
<script>
$script</script>
</head>
<body>
<header class="bar"><div class="brand">largebatch <span>report</span></div>
<label class="slider">Smoothing
<input type="range" id="smoothing" min="0" max="0.98" step="0.01" value="0"></label>
<fieldset><legend>Curves against</legend>$axes</fieldset>
<button type="button" id="theme" title="Light or dark">Dark</button></header>
<noscript><p>Curves and maps need JavaScript.</p></noscript>
<main>
$body
</main>
</body>
</html>
""")


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
    made = single(runs[0]) if len(runs) == 1 else several(runs)
    with replacing(out / PAGE) as stream:
        stream.write(made.html().encode())
    return out / PAGE, runs


def beside(paths: Sequence[Path]) -> Path:
    """Return `report/` in the only path, or in the folder that holds them all."""
    common = os.path.commonpath([path.resolve() for path in paths])
    return (paths[0] if len(paths) == 1 else Path(common)) / "report"


@dataclasses.dataclass
class Page:
    """A page under way: its HTML, and the figures that it shows.

    Attributes:
        title: title of the window.
        body: HTML, in which `data-figure` names charts and maps by their keys.
        figures: in their order.
    """

    title: str
    body: str = ""
    figures: list[Figure] = dataclasses.field(default_factory=list)

    def section(self, key: str, title: str, *parts: str) -> None:
        """Add a part of the page; nothing if it is empty."""
        body = "".join(parts)
        if body:
            self.body += f'<section id="{text(key)}"><h2>{text(title)}</h2>{body}</section>'

    def grid(self, some: Sequence[Figure | None], prefix: str = "") -> str:
        """Return figures side by side; the prefix makes their keys unique."""
        known = [each for each in some if each is not None]
        kept = [dataclasses.replace(each, key=f"{prefix}{each.key}") for each in known]
        self.figures += kept
        return f'<div class="figures">{"".join(map(figure, kept))}</div>' if kept else ""

    def html(self) -> str:
        """Return the file."""
        drawn = [each for each in self.figures if not isinstance(each, Bars | Drawing)]
        data = {"figures": {each.key: charts.as_json(each) for each in drawn}}
        here = files(__package__)
        return _PAGE.substitute(
            title=text(self.title),
            plot_style=(here / "uplot" / "uPlot.min.css").read_text(),
            style=(here / "page.css").read_text(),
            licence=(here / "uplot" / "LICENSE").read_text(),
            plot=(here / "uplot" / "uPlot.iife.min.js").read_text(),
            script=(here / "page.js").read_text(),
            # A script ends at the first "</script", wherever it stands.
            data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
            axes="".join(
                f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (not number)}>'
                f"<span>{axis}</span></label>"
                for number, axis in enumerate(AXES)
            ),
            body=self.body,
        )


def single(run: Run) -> Page:
    """Return the page of one run."""
    page = Page(run.name)
    page.body = (
        f'<div class="title"><h1>{text(run.name)}</h1>'
        f'<span class="badge {text(run.status)}">{text(run.status)}</span></div>{_about(run)}'
    )
    page.section("training", "Training", *_curves(page, charts.of_training([run], [run.name])))
    _add_run(page, run)
    page.section("options", "Configuration", _options(run))
    return page


def several(runs: Sequence[Run]) -> Page:
    """Return the page of two or more runs."""
    page, best = Page(f"{len(runs)} runs compared"), summary.best(runs)
    named = [f"{label} ★" if i in best else label for i, label in enumerate(labels(runs))]
    page.body = f'<div class="title"><h1>{page.title}</h1></div>'
    if len({dataset(run) for run in runs if run.options}) > 1:
        page.body += lead(
            "The runs are on different datasets, so not all results can be compared. The best is "
            "marked among the runs on the same dataset."
        )
    page.section("sweep", "Sweep", page.grid(trials.figures(runs)))
    page.body += table(*summary.results(runs, named), "Results")
    failed = [(label, why) for label, run in zip(named, runs, strict=True) if (why := failure(run))]
    if failed:
        title = f"{len(failed)} of {len(runs)} runs failed"
        rows = table(("run", "reason"), failed, title)
        page.body += f'<details class="failures" open><summary>{title}</summary>{rows}</details>'
    found = groups(runs)
    curves = [*charts.of_training(runs, named), charts.over_seeds(found)]
    page.section("training", "Training", *_curves(page, curves))
    if any(len(group) > 1 for group in found):
        intro = (
            "Runs whose results differ by run.seed only: mean ± half the width of the 95 % "
            "interval of Student's t, over those that are complete. A number behind a value is the "
            "number of runs that have it."
        )
        rows = table(*summary.over_seeds(found), "Seeds")
        page.section("over_seeds", "Over seeds", lead(intro), rows)
    page.section("differences", "Differences of configuration", _differences(runs, named))
    for run, label, key in zip(runs, named, _keys(runs), strict=True):
        page.body += f'<details class="run"><summary>{text(label)}</summary>{_about(run)}'
        _add_run(page, run, f"{key}-")
        page.body += "</details>"
    return page


def _add_run(page: Page, run: Run, prefix: str = "") -> None:
    """Add the sections that belong to one run."""
    layers = charts.of_layers(run)
    weights = [each for each in layers if not each.key.startswith("bn_")]
    statistics = layers[len(weights) :]
    page.section(f"{prefix}layers", "Layers", page.grid(weights, prefix))
    page.section(f"{prefix}norms", "BatchNorm statistics", page.grid(statistics, prefix))
    time = page.grid([charts.of_time(run)], prefix)
    page.section(f"{prefix}time", "Time and events", time, _events(run))


def _keys(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run as part of an id or of the name of a file."""
    names = [re.sub(r"[^A-Za-z0-9_.-]", "_", run.name) for run in runs]
    return [f"{n}-{i}" if names.count(n) > 1 else n for i, n in enumerate(names)]


def _about(run: Run) -> str:
    """The reason of a failure, the tiles, the remarks and the details of a run."""
    tiles = "".join(
        f'<div><dt>{text(fact.name)}</dt><dd class="value">{text(fact.value)}</dd>'
        f'<dd class="more">{text(fact.more)}</dd></div>'
        for fact in summary.headline(run)
    )
    remarks = list(run.remarks)
    if 0 < len(run.layers) < charts.LEAST_ROWS:
        remarks.append(
            f"Maps of layers over time need {charts.LEAST_ROWS} rows of layers.jsonl; this run has "
            f"{len(run.layers)}. Log more with a shorter run.layers_every."
        )
    items = "".join(f"<li>{text(remark)}</li>" for remark in remarks)
    rows = "".join(f"<dt>{text(f.name)}</dt><dd>{text(f.value)}</dd>" for f in summary.details(run))
    listed = f'<ul class="remarks">{items}</ul>' if items else ""
    return f'{_failure(run)}<dl class="tiles">{tiles}</dl>{listed}<dl class="facts">{rows}</dl>'


def _curves(page: Page, some: Sequence[Figure | None]) -> tuple[str, ...]:
    grid = page.grid(some)
    return (lead(_HELP), grid) if grid else ()


def _failure(run: Run) -> str:
    reason = failure(run)
    if reason is None:
        return ""
    return f'<p class="failure" role="alert"><b>Failed.</b> {text(reason)}</p>'


def _events(run: Run) -> str:
    happened = marks(run.events)
    if not happened:
        return ""
    rows = [
        (m.kind, summary.moment(m.time), f"{m.step:,}", f"{m.samples:,.0f}", m.text)
        for m in happened[-_EVENTS:]
    ]
    title = f"{len(happened)} events"
    title += f", the last {_EVENTS} of them" if len(happened) > _EVENTS else ""
    made = table(("event", "time", "step", "samples", "details"), rows, title)
    return f'<details class="events" open><summary>{text(title)}</summary>{made}</details>'


def _differences(runs: Sequence[Run], labels: Sequence[str]) -> str:
    found = differing(runs)

    def made(some: Sequence[Difference], caption: str) -> str:
        by_run = len(runs) > max(_COLUMNS, len(some))
        cells = [["run" if by_run else "option", *labels]]
        cells += ([each.key, *map(value_text, each.values)] for each in some)
        head, *rows = zip(*cells, strict=True) if by_run else cells
        return table(head, rows, caption)

    changing = [each for each in found if each.mathematics is not False]
    rest = [each for each in found if each.mathematics is False]
    body = made(changing, "Differences") if changing else ""
    if rest:
        title = f"{len(rest)} different options that do not change the mathematics"
        body += f"<details><summary>{title}</summary>{made(rest, title)}</details>"
    return body or lead("None: all options are alike.")


def _options(run: Run) -> str:
    default = {key: value_text(field.default) for key, _, field in options(Config())}
    chosen = [(key, value_text(value)) for key, value in run.options.items()]
    if not chosen:
        return ""
    changed = [(k, v, default.get(k, NONE)) for k, v in chosen if default.get(k) != v]
    rest = [(k, v) for k, v in chosen if default.get(k) == v]
    return (
        table(("option", "value", "default"), changed, "Options that are not the default")
        + f"<details><summary>{len(rest)} options at their defaults</summary>"
        + table(("option", "value"), rest, "Options at their defaults")
        + "</details>"
    )


def text(value: object) -> str:
    """Escape a value for HTML text and attributes; a per cent sign stays with its number."""
    return escape(str(value), quote=True).replace(" %", "\u00a0%")


def table(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str) -> str:
    """Return a table in a box that scrolls in narrow windows; one of `Cell` can be sorted."""
    sortable = any(isinstance(cell, Cell) for row in rows for cell in row)
    names = (f"<button>{text(name)}</button>" if sortable else text(name) for name in head)
    cells = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        f"<tr>{_cell('th', row[0])}{''.join(_cell('td', cell) for cell in row[1:])}</tr>"
        for row in rows
    )
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{kind}><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, cell: str | Cell) -> str:
    scope = ' scope="row"' if tag == "th" else ""
    if not isinstance(cell, Cell):
        return f"<{tag}{scope}>{text(cell)}</{tag}>"
    value = "" if cell.value is None else text(cell.value)
    best = ' class="best" title="best of the column, on its dataset"' if cell.best else ""
    return f'<{tag}{scope} data-value="{value}"{best}>{text(cell.text)}</{tag}>'


def figure(found: Figure) -> str:
    """Return a figure; `page.js` draws a chart or a map, the others are HTML."""
    if isinstance(found, Bars):
        inside = _bars(found)
    elif isinstance(found, Drawing):
        inside = found.html
    else:
        kind = "chart" if isinstance(found, Chart) else "map"
        inside = f'<div class="{kind}" data-figure="{text(found.key)}"></div>'
    caption = f"<figcaption>{text(found.caption)}</figcaption>"
    return f"<figure><h3>{text(found.title)}</h3>{inside}{caption}</figure>"


def _bars(found: Bars) -> str:
    """Bars with the value of each, and a key with the share of each part."""
    sums = [sum(parts.values()) for _, parts in found.rows]
    colours = {part: f"background:var(--s{index + 1})" for part, index in found.colours.items()}
    rows = ""
    for (title, parts), length in zip(found.rows, sums, strict=True):
        pieces = "".join(
            f'<i style="width:{100 * parts[part] / max(sums):.3f}%;{colour}" '
            f'title="{text(part)} {parts[part]:.3g} {text(found.unit)}"></i>'
            for part, colour in colours.items()
            if parts.get(part)
        )
        rows += (
            f'<span>{text(title)}</span><div class="bar">{pieces}</div><span>{length:.1f}</span>'
        )
    key = ""
    for part, colour in colours.items():
        share = sum(parts.get(part, 0.0) for _, parts in found.rows) / sum(sums)
        shown = f"{100 * share:.0f} %" if share >= 0.005 else "< 1 %"
        key += f'<li><i style="{colour}"></i>{text(part)} {text(shown)}</li>' if share else ""
    key = f'<ul class="key">{key}</ul>' if len(colours) > 1 else ""
    return f'{key}<div class="bars">{rows}</div><p class="unit">{text(found.unit)}</p>'


def lead(words: str) -> str:
    """Return a paragraph that introduces a section."""
    return f'<p class="lead">{text(words)}</p>'
