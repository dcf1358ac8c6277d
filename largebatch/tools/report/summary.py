"""Figures of a run in words and numbers."""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from largebatch.tools.report.array_summaries import is_number
from largebatch.tools.report.differences import NONE
from largebatch.tools.report.runs import Run
from largebatch.tools.report.seeds import complete, interval
from largebatch.tools.report.series import against
from largebatch.tools.report.turns import FAILED, marks, turns_of
from largebatch.tracking.progress import images_per_s_text


class Fact(NamedTuple):
    """A figure with its name, and what adds to it."""

    name: str
    value: str
    more: str = ""


class Cell(NamedTuple):
    """A cell of a table that can be sorted.

    Attributes:
        text: what is shown.
        value: what is sorted by; None sorts last.
        best: whether it is the best of its column.
    """

    text: str
    value: float | str | None = None
    best: bool = False

    def __str__(self) -> str:
        return self.text


def failure(run: Run) -> str | None:
    """Return why a run failed; None for a run that did not."""
    if run.status != "failed":
        return None
    reasons = [mark.text for mark in marks(run.events) if mark.kind == FAILED and mark.text]
    unknown = "events.jsonl has no reason; see the last lines that the training printed"
    return reasons[-1] if reasons else unknown


def best(runs: Sequence[Run]) -> int | None:
    """Return the index of the run with the highest validation top-1, then the lowest loss."""
    scores = [(validation(run, "top1"), validation(run, "loss")) for run in runs]
    known = [i for i, (top1, _) in enumerate(scores) if is_number(top1)]
    if len(known) < 2:
        return None
    return max(
        known,
        key=lambda i: (scores[i][0], -(scores[i][1] if is_number(scores[i][1]) else math.inf)),
    )


def seconds_of(run: Run) -> float | None:
    """Wall time of all attempts, in seconds; of an unfinished run, until its last row."""
    found = [run.summary.get("wall_s")] if run.status != "unfinished" else []
    times = against(run.metrics, "time")
    found += [float(times[-1])] if len(times) else []
    return next((value for value in found if value is not None and value == value), None)


def validation(run: Run, name: str) -> float | None:
    """The last value of `validation/NAME`; the summary's where no row has it."""
    rows = [row for row in run.metrics if row.get(f"validation/{name}") is not None]
    return rows[-1][f"validation/{name}"] if rows else run.summary.get(name)


def target(run: Run) -> tuple[float, int | None, float | None] | None:
    """The target accuracy, and the step and the seconds at which it was reached."""
    wanted = run.summary.get("target_top1") or run.options.get("run.target")
    if not is_number(wanted) or wanted <= 0:
        return None
    if run.summary.get("target_step") is not None:
        return wanted, run.summary["target_step"], run.summary.get("target_s")
    for row, second in zip(run.metrics, against(run.metrics, "time"), strict=True):
        if (row.get("validation/top1") or 0.0) >= wanted:
            return wanted, row["step"], float(second)
    return wanted, None, None


def headline(run: Run) -> list[Fact]:
    """The figures at the head of the page."""
    rate, last = run.summary.get("images_per_s"), run.metrics[-1] if run.metrics else {}
    if rate is None or run.status == "unfinished":
        rate = last.get("images_per_s", rate)
    top5, planned = validation(run, "top5"), run.config.get("plan", {}).get("steps")
    epoch = last.get("epoch")
    samples = last.get("samples") or run.summary.get("samples")
    found = [
        Fact("top-1", percent(validation(run, "top1")), f"top-5 {percent(top5)}"),
        Fact("validation loss", number(validation(run, "loss"), ".4g"), ""),
        Fact("time", duration_text(seconds_of(run)), "with compilation"),
        Fact("throughput", number(rate, ",.0f"), "images/s"),
        Fact(
            "samples",
            number(samples, ",.0f"),
            NONE if epoch is None else f"{epoch:.2f} epochs",
        ),
        Fact("steps", number(run.step, ",.0f"), f"of {planned:,}" if planned else ""),
    ]
    aim = target(run)
    if aim:
        wanted, step, second = aim
        reached = f"after step {step:,}" if step is not None else "not reached"
        found.insert(2, Fact(f"to {percent(wanted)}", duration_text(second), reached))
    return found


def details(run: Run) -> list[Fact]:
    """Hardware, software and recipe of a run."""
    environment, turns = run.config.get("environment", {}), turns_of(run.events)
    facts = turns[-1].facts if turns else {}
    versions = dict(environment.get("versions", {}))
    versions |= {"jax": facts["jax"]} if facts.get("jax") else {}
    python = facts.get("python") or environment.get("python")
    devices = facts.get("devices") or environment.get("devices")
    kind = facts.get("device_kind") or environment.get("device")
    options, plan = run.options, run.config.get("plan", {})
    began = turns[0].began if turns else 0.0
    rows = (
        ("directory", str(run.path)),
        ("started", moment(began) if began else ""),
        ("run attempts", str(len(turns)) if turns else ""),
        ("devices", f"{devices} × {kind}" if devices else ""),
        ("processes", str(facts.get("processes") or environment.get("processes") or "")),
        ("host", str(facts.get("host") or "")),
        ("batch", f"{plan['samples_per_step']:,} images" if "samples_per_step" in plan else ""),
        ("model", _model(options)),
        ("optimizer", _optimizer(options)),
        ("data", str(options.get("data.source") or "")),
        ("seed", str(options.get("run.seed", ""))),
        ("Python", str(python or "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((name, str(run.summary[name])) for name in _COUNTS if run.summary.get(name)),
    )
    return [Fact(name, value) for name, value in rows if value and "None" not in value]


_COUNTS = ("skips", "rollbacks", "unreadable")


def results(runs: Sequence[Run], labels: Sequence[str]) -> tuple[list[str], list[list[Cell]]]:
    """Return head and rows of the table of several runs, the best of each column marked."""
    aims = [target(run) for run in runs]
    rates = [run.summary.get("images_per_s") for run in runs]
    columns = [
        ("run", list(labels), str, None),
        ("status", [run.status for run in runs], str, None),
        ("top-1", [validation(run, "top1") for run in runs], percent, max),
        ("top-5", [validation(run, "top5") for run in runs], percent, max),
        ("validation loss", [validation(run, "loss") for run in runs], _loss_text, min),
        ("time", [seconds_of(run) for run in runs], duration_text, None),
        ("throughput", rates, lambda r: NONE if r is None else images_per_s_text(r), None),
    ]
    if any(aims):
        late = [aim[2] if aim else None for aim in aims]
        columns.append(("time to target", late, duration_text, min))
    if not all(label.startswith(run.name) for label, run in zip(labels, runs, strict=True)):
        columns.append(("directory", [run.name for run in runs], str, None))
    made = [_column(values, shown, better) for _, values, shown, better in columns]
    return [name for name, *_ in columns], [list(row) for row in zip(*made, strict=True)]


def _column(
    values: Sequence[Any], shown: Callable[[Any], str], better: Callable[[Any], Any] | None
) -> list[Cell]:
    known = [value for value in values if is_number(value)]
    top = better(known) if better and len(set(known)) > 1 else None
    return [
        Cell(shown(value), value, is_number(value) and top is not None and value == top)
        for value in values
    ]


def _loss_text(value: float | None) -> str:
    return number(value, ".4g")


def _model(options: Mapping[str, Any]) -> str:
    name = str(options.get("model.name"))
    return name if ":" in name else f"{name}, width {options.get('model.width')}"


def _optimizer(options: Mapping[str, Any]) -> str:
    name = options.get("optimizer.name")
    if name == "lars":
        return f"{name}, flavour {options.get('optimizer.flavour')}"
    return ", ".join(map(str, filter(None, (name, options.get("optimizer.options")))))


def over_seeds(groups: Sequence[Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of recipes, with mean and 95 % interval over their seeds.

    Runs that are not complete count in the number of seeds only.
    """
    rows = []
    for group in groups:
        if len(group) < 2:
            continue
        whole = complete(group)
        columns = (
            ([validation(run, "top1") for run in whole], 100, ".2f", " %"),
            ([validation(run, "loss") for run in whole], 1, ".4f", ""),
            ([seconds_of(run) for run in whole], 1, ".1f", " s"),
        )
        names = ", ".join(run.name for run in group)
        row = [names, f"{len(whole)} of {len(group)}"]
        rows.append(row + [_spread(*column) for column in columns])
    return ["runs", "seeds", "top-1", "validation loss", "time"], rows


def percent(fraction: float | None) -> str:
    """A fraction in percent."""
    return NONE if fraction is None else f"{100 * fraction:.2f} %"


def number(value: float | None, form: str) -> str:
    """A number in a format."""
    return NONE if value is None else format(value, form)


def duration_text(seconds: float | None) -> str:
    """Seconds below two minutes, else hours, minutes and seconds."""
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02d} min" if hours else f"{minute} min {second:02d} s"


def moment(seconds: float) -> str:
    """Unix seconds as a date and a time, UTC; beyond the calendar, none."""
    try:
        found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return NONE
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"


def _spread(values: Sequence[float | None], scale: float, form: str, unit: str) -> str:
    """Mean and interval; of how many runs, where some have no value."""
    known = [value for value in values if is_number(value)]
    if not known:
        return NONE
    found = interval(known)
    text = format(scale * found.mean, form)
    if found.half is not None:
        text += f" ± {format(scale * found.half, form)}"
    return text + unit + (f" ({len(known)} of {len(values)})" if len(known) < len(values) else "")
