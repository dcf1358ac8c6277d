"""Results of runs as text: the tiles, the details and the tables of the page."""

import datetime
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from largebatch.tools.report.compare import (
    NONE,
    complete,
    dataset,
    dataset_names,
    further_columns,
    interval,
)
from largebatch.tools.report.runs import FAILED, Run, attempts_of, marks
from largebatch.tracking.console import images_per_s_text


class Fact(NamedTuple):
    """A result with its name and an addition."""

    name: str
    value: str
    more: str = ""


class Cell(NamedTuple):
    """A cell of a sortable table."""

    text: str
    value: float | str | None = None  # the sort key; None sorts last
    best: bool = False  # whether it is the best of its column


def failure(run: Run) -> str | None:
    """Return why a run failed; None for a run that did not."""
    if run.status != "failed":
        return None
    reasons = [mark.text for mark in marks(run.events) if mark.kind == FAILED and mark.text]
    unknown = "events.jsonl has no reason; see the last lines that the training printed"
    return reasons[-1] if reasons else unknown


def best(runs: Sequence[Run]) -> list[int]:
    """Return the indices of the best runs: of each dataset with several runs, one.

    The best has the highest validation top-1, then the lowest loss.
    """
    known: dict[tuple[str, ...], list[int]] = {}
    for i, run in enumerate(runs):
        if validation(run, "top1") is not None:
            known.setdefault(dataset(run), []).append(i)
    return [min(some, key=lambda i: rank(runs[i])) for some in known.values() if len(some) > 1]


def rank(run: Run) -> tuple[float, float]:
    """Return a key that sorts runs from the best to the worst: by top-1, then by loss."""
    loss = validation(run, "loss")
    return -(validation(run, "top1") or 0.0), math.inf if loss is None else loss


def seconds_of(run: Run) -> float | None:
    """Return the wall time of all attempts; for an unfinished run, until its last row."""
    complete_s = run.summary.get("wall_s") if run.status != "unfinished" else None
    return run.metrics.last("seconds") if complete_s is None else complete_s


def validation(run: Run, name: str) -> float | None:
    """Return the last value of `validation/NAME`, or the summary's if no row has it.

    `top5` is None where it says nothing, for at most five classes.
    """
    if name == "top5" and (run.config.get("facts") or {}).get("classes", 6) <= 5:
        return None
    found = run.metrics.last(f"validation/{name}")
    return run.summary.get(name) if found is None else found


def target(run: Run) -> tuple[float, int | None, float | None] | None:
    """Return the target accuracy, and the step and the seconds at which it was reached."""
    wanted = run.summary.get("target_top1") or run.options.get("run.target")
    if not wanted:
        return None
    if "target_step" in run.summary:
        return wanted, run.summary["target_step"], run.summary.get("target_s")
    reached = np.flatnonzero(run.metrics.column("validation/top1") >= wanted)
    if not reached.size:
        return wanted, None, None
    row = run.metrics[reached[0]]
    return wanted, row["step"], row.get("seconds")


def headline(run: Run) -> list[Fact]:
    """Return the results at the head of the page."""
    planned = run.config.get("plan", {}).get("steps")
    mean = None if run.status == "unfinished" else run.summary.get("images_per_s")
    last = run.metrics.last
    samples = last("samples") or run.summary.get("samples")
    found = [
        Fact(
            "top-1",
            percent(validation(run, "top1")),
            "" if (top5 := validation(run, "top5")) is None else f"top-5 {percent(top5)}",
        ),
        *_best_checkpoint(run),
        *(
            Fact("top-1", percent(last(column)), title)
            for column, title in further_columns([run], "top1").items()
        ),
        Fact("validation loss", number(validation(run, "loss"), ".4g")),
        Fact("time", duration_text(seconds_of(run)), "with compilation"),
        Fact("throughput", number(mean or last("images_per_s"), ",.0f"), "images/s"),
        Fact("samples", number(samples, ",.0f"), f"{number(last('epoch'), '.2f')} epochs"),
        Fact("steps", f"{run.step:,}", f"of {planned:,}" if planned else ""),
    ]
    if aim := target(run):
        wanted, step, second = aim
        reached = f"after step {step:,}" if step is not None else "not reached"
        found.insert(len(found) - 4, Fact(f"to {percent(wanted)}", duration_text(second), reached))
    return found


def _best_checkpoint(run: Run) -> list[Fact]:
    """Return the best evaluation and its checkpoint; nothing if it is the last one."""
    evaluated = [row for row in run.metrics if row.get("validation/top1") is not None]
    found = max(evaluated, key=lambda row: row["validation/top1"], default=None)
    if found is None or found["validation/top1"] == evaluated[-1]["validation/top1"]:
        return []
    kept = Path("checkpoints", f"{found['step']}.safetensors")
    where = f", {kept}" if (run.path / kept).is_file() else ""
    value = percent(found["validation/top1"])
    return [Fact("best top-1", value, f"after step {found['step']:,}{where}")]


def details(run: Run) -> list[Fact]:
    """Return hardware, software and recipe of a run."""
    attempts, options = attempts_of(run.events), run.options
    environment, plan = (run.config.get(name, {}) for name in ("environment", "plan"))
    facts = attempts[-1][0] if attempts else {}
    versions = dict(environment.get("versions", {}))
    versions |= {"jax": facts["jax"]} if facts.get("jax") else {}
    devices = facts.get("devices") or environment.get("devices")
    kind = facts.get("device_kind") or environment.get("device")
    batch = plan.get("samples_per_step")
    model = [options.get("model.name")]
    if ":" not in str(model[0]) and options.get("model.width"):  # the width is not of an own model
        model.append(f"width {options['model.width']}")
    optimizer = [options.get("optimizer.name"), options.get("optimizer.options")]
    if optimizer[0] == "lars":
        optimizer[1] = f"flavour {options.get('optimizer.flavour')}"
    rows = (
        ("directory", run.path),
        ("started", moment(attempts[0][0]["time"]) if attempts else ""),
        ("run attempts", len(attempts)),
        ("devices", f"{devices} × {kind}" if devices else ""),
        ("processes", facts.get("processes") or environment.get("processes")),
        ("host", facts.get("host")),
        ("batch", f"{batch:,} images" if batch else ""),
        ("model", ", ".join(map(str, filter(None, model)))),
        ("optimizer", ", ".join(map(str, filter(None, optimizer)))),
        ("data", options.get("data.source")),
        ("seed", str(options.get("run.seed", ""))),
        ("Python", facts.get("python") or environment.get("python")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((name, run.summary.get(name)) for name in ("skips", "rollbacks", "unreadable")),
    )
    return [Fact(name, str(value)) for name, value in rows if value]


def results(runs: Sequence[Run], labels: Sequence[str]) -> tuple[list[str], list[list[Cell]]]:
    """Return head and rows of the table of several runs.

    The best of each column is marked, among the runs on one dataset.
    """

    def shown(text: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda value: NONE if value is None else text(value)

    times = [aim[2] if (aim := target(run)) else None for run in runs]
    named = all(label.startswith(run.name) for run, label in zip(runs, labels, strict=True))
    directories = [None if named else run.name for run in runs]
    sets = dataset_names(runs)
    columns: list[tuple[str, Sequence[Any], Callable[[Any], str], Any]] = [
        ("run", labels, str, None),
        ("dataset", sets if len(set(sets)) > 1 else [None] * len(runs), str, None),
        ("status", [run.status for run in runs], str, None),
        ("top-1", [validation(run, "top1") for run in runs], percent, max),
        ("top-5", [validation(run, "top5") for run in runs], percent, max),
        *(
            (f"top-1: {title}", [run.metrics.last(column) for run in runs], percent, max)
            for column, title in further_columns(runs, "top1").items()
        ),
        ("validation loss", [validation(run, "loss") for run in runs], shown("{:.4g}".format), min),
        ("time", [seconds_of(run) for run in runs], duration_text, None),
        (
            "throughput",
            [run.summary.get("images_per_s") for run in runs],
            shown(images_per_s_text),
            None,
        ),
        ("time to target", times, duration_text, min),
        ("directory", directories, shown(str), None),
    ]
    columns = [column for column in columns if any(value is not None for value in column[1])]
    made = []
    for _, values, text, better in columns:
        known: dict[str, set[Any]] = {name: set() for name in sets}
        for name, value in zip(sets, values, strict=True):
            known[name] |= {value} - {None}
        tops = {n: better(some) for n, some in known.items() if better and len(some) > 1}
        best_of = [v is not None and v == tops.get(n) for n, v in zip(sets, values, strict=True)]
        made.append([Cell(text(v), v, top) for v, top in zip(values, best_of, strict=True)])
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
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


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
