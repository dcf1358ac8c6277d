"""Results of runs as text: the tiles, the details and the tables of the page."""

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from largebatch.tools.report.attempts import FAILED, attempts_of, marks
from largebatch.tools.report.compare import NONE, complete, interval
from largebatch.tools.report.runs import Run, is_number
from largebatch.tracking.progress import images_per_s_text


class Fact(NamedTuple):
    """A result with its name and an addition."""

    name: str
    value: str
    more: str = ""


class Cell(NamedTuple):
    """A cell of a sortable table.

    Attributes:
        text: the text of the cell.
        value: the sort key; None sorts last.
        best: whether it is the best of its column.
    """

    text: str
    value: float | str | None = None
    best: bool = False


def failure(run: Run) -> str | None:
    """Return why a run failed; None for a run that did not."""
    if run.status != "failed":
        return None
    reasons = [mark.text for mark in marks(run.events) if mark.kind == FAILED and mark.text]
    unknown = "events.jsonl has no reason; see the last lines that the training printed"
    return reasons[-1] if reasons else unknown


def best(runs: Sequence[Run]) -> int | None:
    """Return the index of the run with the highest validation top-1, then the lowest loss."""

    def score(index: int) -> tuple[float, float]:
        loss = validation(runs[index], "loss")
        return validation(runs[index], "top1"), -math.inf if loss is None else -loss

    known = [i for i, run in enumerate(runs) if validation(run, "top1") is not None]
    return max(known, key=score) if len(known) > 1 else None


def seconds_of(run: Run) -> float | None:
    """Return the wall time of all attempts; for an unfinished run, until its last row."""
    complete_s = run.summary.get("wall_s") if run.status != "unfinished" else None
    return last(run, "seconds") if complete_s is None else complete_s


def validation(run: Run, name: str) -> float | None:
    """Return the last value of `validation/NAME`, or the summary's if no row has it."""
    found = last(run, f"validation/{name}")
    return run.summary.get(name) if found is None else found


def last(run: Run, name: str) -> float | None:
    """Return the last number of a column of `metrics.jsonl`; None if there is none."""
    column = run.metrics.column(name)
    known = column[np.isfinite(column)]
    return float(known[-1]) if known.size else None


def target(run: Run) -> tuple[float, int | None, float | None] | None:
    """Return the target accuracy, and the step and the seconds at which it was reached."""
    wanted = run.summary.get("target_top1") or run.options.get("run.target")
    if not is_number(wanted) or wanted <= 0:
        return None
    if "target_step" in run.summary:
        return wanted, run.summary["target_step"], run.summary.get("target_s")
    reached = np.flatnonzero(run.metrics.column("validation/top1") >= wanted)
    if not reached.size:
        return wanted, None, None
    second = float(run.metrics.column("seconds")[reached[0]])
    return wanted, run.metrics[reached[0]]["step"], second if math.isfinite(second) else None


def headline(run: Run) -> list[Fact]:
    """Return the results at the head of the page."""
    planned = run.config.get("plan", {}).get("steps")
    mean = None if run.status == "unfinished" else run.summary.get("images_per_s")
    top5 = percent(validation(run, "top5"))
    samples = last(run, "samples") or run.summary.get("samples")
    found = [
        Fact("top-1", percent(validation(run, "top1")), f"top-5 {top5}"),
        Fact("validation loss", number(validation(run, "loss"), ".4g")),
        Fact("time", duration_text(seconds_of(run)), "with compilation"),
        Fact("throughput", number(mean or last(run, "images_per_s"), ",.0f"), "images/s"),
        Fact("samples", number(samples, ",.0f"), f"{number(last(run, 'epoch'), '.2f')} epochs"),
        Fact("steps", f"{run.step:,}", f"of {planned:,}" if is_number(planned) else ""),
    ]
    aim = target(run)
    if aim:
        wanted, step, second = aim
        reached = f"after step {step:,}" if step is not None else "not reached"
        found.insert(2, Fact(f"to {percent(wanted)}", duration_text(second), reached))
    return found


def details(run: Run) -> list[Fact]:
    """Return hardware, software and recipe of a run."""
    attempts, options = attempts_of(run.events), run.options
    environment, plan = (run.config.get(name, {}) for name in ("environment", "plan"))
    facts = attempts[-1].facts if attempts else {}
    versions = environment.get("versions")
    versions = {**versions} if isinstance(versions, dict) else {}
    versions |= {"jax": facts["jax"]} if facts.get("jax") else {}
    devices = facts.get("devices") or environment.get("devices")
    kind = facts.get("device_kind") or environment.get("device")
    batch = plan.get("samples_per_step")
    rows = (
        ("directory", run.path),
        ("started", moment(attempts[0].facts["time"]) if attempts else ""),
        ("run attempts", len(attempts)),
        ("devices", f"{devices} × {kind}" if devices else ""),
        ("processes", facts.get("processes") or environment.get("processes")),
        ("host", facts.get("host")),
        ("batch", f"{batch:,} images" if is_number(batch) else ""),
        ("model", _model(options)),
        ("optimizer", _optimizer(options)),
        ("data", options.get("data.source")),
        ("seed", str(options.get("run.seed", ""))),
        ("Python", facts.get("python") or environment.get("python")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((name, run.summary.get(name)) for name in ("skips", "rollbacks", "unreadable")),
    )
    return [Fact(name, str(value)) for name, value in rows if value]


def results(runs: Sequence[Run], labels: Sequence[str]) -> tuple[list[str], list[list[Cell]]]:
    """Return head and rows of the table of several runs, the best of each column marked."""
    columns: list[tuple[str, Sequence[Any], Callable[[Any], str], Any]] = [
        ("run", list(labels), str, None),
        ("status", [run.status for run in runs], str, None),
        ("top-1", [validation(run, "top1") for run in runs], percent, max),
        ("top-5", [validation(run, "top5") for run in runs], percent, max),
        ("validation loss", [validation(run, "loss") for run in runs], _loss_text, min),
        ("time", [seconds_of(run) for run in runs], duration_text, None),
        ("throughput", [run.summary.get("images_per_s") for run in runs], _rate_text, None),
    ]
    aims = [target(run) for run in runs]
    if any(aims):
        times = [aim[2] if aim else None for aim in aims]
        columns.append(("time to target", times, duration_text, min))
    if not all(label.startswith(run.name) for label, run in zip(labels, runs, strict=True)):
        columns.append(("directory", [run.name for run in runs], str, None))
    made = [_column(values, shown, better) for _, values, shown, better in columns]
    return [name for name, *_ in columns], [list(row) for row in zip(*made, strict=True)]


def over_seeds(groups: Sequence[Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of groups, with mean and 95 % interval over their seeds.

    Runs that are not complete count in the number of seeds only.
    """
    rows = []
    for group in groups:
        if len(group) < 2:
            continue
        counted = complete(group)
        rows.append(
            [
                ", ".join(run.name for run in group),
                f"{len(counted)} of {len(group)}",
                _spread([validation(run, "top1") for run in counted], 100, ".2f", " %"),
                _spread([validation(run, "loss") for run in counted], 1, ".4f", ""),
                _spread([seconds_of(run) for run in counted], 1, ".1f", " s"),
            ]
        )
    return ["runs", "seeds", "top-1", "validation loss", "time"], rows


def percent(fraction: float | None) -> str:
    """Return a fraction in percent."""
    return NONE if fraction is None else f"{100 * fraction:.2f} %"


def number(value: float | None, form: str) -> str:
    """Return a number in a format."""
    return NONE if value is None else format(value, form)


def duration_text(seconds: float | None) -> str:
    """Return seconds below two minutes, else hours, minutes and seconds."""
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02d} min" if hours else f"{minute} min {second:02d} s"


def moment(seconds: float) -> str:
    """Return Unix seconds as a date and a time, UTC."""
    try:
        found = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return NONE
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"


def _column(
    values: Sequence[Any], shown: Callable[[Any], str], better: Callable[[Any], Any] | None
) -> list[Cell]:
    known = {value for value in values if is_number(value)}
    top = better(known) if better and len(known) > 1 else None
    return [Cell(shown(value), value, top is not None and value == top) for value in values]


def _loss_text(value: float | None) -> str:
    return number(value, ".4g")


def _rate_text(value: float | None) -> str:
    return NONE if value is None else images_per_s_text(value)


def _model(options: dict[str, Any]) -> str:
    is_own = ":" in str(options.get("model.name"))
    return _joined(options, "model.name", "" if is_own else "model.width", ", width ")


def _optimizer(options: dict[str, Any]) -> str:
    if options.get("optimizer.name") == "lars":
        return _joined(options, "optimizer.name", "optimizer.flavour", ", flavour ")
    return _joined(options, "optimizer.name", "optimizer.options", ", ")


def _joined(options: dict[str, Any], first: str, second: str, between: str) -> str:
    parts = [str(options[key]) for key in (first, second) if options.get(key)]
    return between.join(parts)


def _spread(values: Sequence[float | None], scale: float, form: str, unit: str) -> str:
    """Mean and interval, with the number of values if some are missing."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    found = interval(known)
    text = format(scale * found.mean, form)
    if found.half is not None:
        text += f" ± {format(scale * found.half, form)}"
    return text + unit + (f" ({len(known)} of {len(values)})" if len(known) < len(values) else "")
