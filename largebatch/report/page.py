"""The page: figures and facts in order, as one file that needs nothing else."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from largebatch.report import facts, palette
from largebatch.report.canvas import Drawing
from largebatch.report.html import figure, listing, section, table, text, tiles
from largebatch.report.runs import Run
from largebatch.report.seeds import differing, groups
from largebatch.report.series import AXES
from largebatch.report.trace import Profile
from largebatch.report.turns import marks

_EVENTS = 500
"""Most rows of a list of events; the last ones are shown."""
_KERNELS = 12
_ORDER = ("loss", "top1", "seeds", "schedule", "throughput", "gradient")
"""Of the curves where they stand in one column."""
Pictures = Mapping[str, Sequence[tuple[str, str]]]
"""Key of a drawing → (axis, SVG) of each; the axis is empty where there is one only."""


def page(title: str, body: str) -> str:
    """The whole file."""
    colours = "".join(f"--{c.name}:light-dark({c.light},{c.dark});" for c in palette.ALL)
    here = Path(__file__).parent
    style = f":root{{{colours}}}\n" + (here / "page.css").read_text()
    choices = "".join(
        f'<label><input type="radio" name="axis" id="axis-{axis}"{" checked" * (not number)}>'
        f"<span>{axis}</span></label>"
        for number, axis in enumerate(AXES)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n"
        f"<script>\n{(here / 'page.js').read_text()}</script>\n</head>\n<body>\n"
        '<header class="bar"><div class="brand">largebatch <span>report</span></div>'
        f"<fieldset><legend>Curves against</legend>{choices}</fieldset>"
        '<button type="button" id="theme" title="Light or dark">Dark</button></header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def single(
    run: Run, drawings: Mapping[str, Sequence[Drawing]], drawn: Pictures, profile: Profile | None
) -> str:
    """Everything about one run.

    Args:
        run: the run.
        drawings: by part: curves, layers, norms, time, events, trace.
        drawn: their pictures.
        profile: of its device, where there is one.
    """
    head = (
        f'<div class="title"><h1>{text(run.name)}</h1>'
        f'<span class="badge {text(run.status)}">{text(run.status)}</span></div>'
    )
    return (
        head
        + tiles(facts.headline(run))
        + _remarks(run)
        + listing(facts.details(run))
        + section("training", "Training", _curves(drawings["curves"], drawn))
        + inner(run, drawings, drawn, profile)
        + section("options", "Configuration", _options(run))
        + _footer([run])
    )


def several(
    runs: Sequence[Run],
    curves: Sequence[Drawing],
    each: Mapping[str, Mapping[str, Sequence[Drawing]]],
    drawn: Pictures,
    profiles: Mapping[str, Profile],
) -> str:
    """Runs side by side.

    Args:
        runs: two or more.
        curves: figures that show all of them.
        each: by name of the run and part, its own figures.
        drawn: pictures of all.
        profiles: by name of the run.
    """
    found = groups(runs)
    together = [group for group in found if len(group) > 1]
    body = f'<div class="title"><h1>{len(runs)} runs compared</h1></div>'
    body += table(*facts.results(runs), "Results")
    if together:
        body += (
            '<h2>Over seeds</h2><p class="lead">Runs that differ in run.seed only: mean ± half the '
            "width of the 95 % interval of Student's t, over those that are complete; behind a "
            "value, of how many where some lack it.</p>"
        )
        body += table(*facts.over_seeds(found), "Over seeds")
    body += section("differences", "Differences of configuration", _differences(runs))
    body += section("training", "Training", _curves(curves, drawn))
    for run in runs:
        parts = inner(run, each[run.name], drawn, profiles.get(run.name), f"{run_key(run)}-")
        body += (
            f'<details class="run"><summary>{text(run.name)}</summary>'
            + tiles(facts.headline(run))
            + _remarks(run)
            + listing(facts.details(run))
            + parts
            + "</details>"
        )
    return body + _footer(runs)


def inner(
    run: Run,
    drawings: Mapping[str, Sequence[Drawing]],
    drawn: Pictures,
    profile: Profile | None,
    prefix: str = "",
) -> str:
    """The parts that belong to one run: layers, statistics, time, events, trace."""
    return (
        section(f"{prefix}layers", "Layers", _grid(drawings["layers"], drawn))
        + section(f"{prefix}norms", "BatchNorm statistics", _grid(drawings["norms"], drawn))
        + section(
            f"{prefix}time",
            "Time and events",
            _grid([*drawings["time"], *drawings["events"]], drawn) + _events(run),
        )
        + section(f"{prefix}trace", "Device", _trace(profile, drawings["trace"], drawn))
    )


def run_key(run: Run) -> str:
    """A run's name as part of an id or of a file's name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in run.name)


def _figure(drawing: Drawing, drawn: Pictures, order: int = 0) -> str:
    return figure(drawing.title, drawing.caption, drawn[drawing.key], order)


def _grid(drawings: Sequence[Drawing], drawn: Pictures) -> str:
    made = "".join(_figure(drawing, drawn) for drawing in drawings)
    return f'<div class="figures">{made}</div>' if made else ""


def _curves(drawings: Sequence[Drawing], drawn: Pictures) -> str:
    """Two columns, of which each is filled by itself: the figures differ in height."""
    left = [d for d in drawings if d.key in ("loss", "schedule", "seeds")]
    columns = (left, [d for d in drawings if d not in left])
    made = ("".join(_figure(d, drawn, _ORDER.index(d.key)) for d in column) for column in columns)
    stacks = "".join(f'<div class="stack">{column}</div>' for column in made if column)
    return f'<div class="figures">{stacks}</div>' if stacks else ""


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


def _trace(profile: Profile | None, drawings: Sequence[Drawing], drawn: Pictures) -> str:
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
    return f'<p class="lead">{text(lead)}</p>' + _grid(drawings, drawn) + made


def _differences(runs: Sequence[Run]) -> str:
    found = differing(runs)
    if not found:
        return '<p class="lead">None: all options are alike.</p>'
    known = {True: "changes", False: "same", None: facts.NONE}
    rows = [
        [each.key, *(_value(v) for v in each.values), known[each.mathematics]] for each in found
    ]
    return table(["option", *(run.name for run in runs), "mathematics"], rows, "Differences")


def _options(run: Run) -> str:
    from largebatch.config.options import options
    from largebatch.config.schema import Config

    default = {key: _value(_plain(field.default)) for key, _, field in options(Config())}
    chosen = [(key, _value(value)) for key, value in run.options.items()]
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


def _value(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    return facts.NONE if value is None else json.dumps(value, ensure_ascii=False)


def _footer(runs: Sequence[Run]) -> str:
    last = max((m.time for run in runs for m in marks(run.events)), default=0.0)
    rows = max((len(run.metrics) for run in runs), default=0)
    told = f"The last event is of {facts.moment(last)}. " if last else ""
    return f"<footer>{text(told)}Up to {rows:,} rows of a log were read.</footer>"
