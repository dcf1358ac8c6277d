"""Read the directory of a run: complete, failed or still training; its logs as curves."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from largebatch.errors import DataError, UserError
from largebatch.files import read_json
from largebatch.tools.sweep import results
from largebatch.tools.sweep.trial import Trial
from largebatch.tracking.jsonl import ATTEMPT_EVENTS, read_rows

Row = Mapping[str, Any]
AXES = {"epochs": "epoch", "samples": "samples", "time": "seconds"}
"""Horizontal axis → its column. Time is in seconds, without the pauses between run attempts."""
_FILES = ("metrics.jsonl", "config.json", "events.jsonl")
"""A directory with any of these is a run."""
PAGE = "report.html"
"""The file of a report. By default it is in a folder beside the runs that it compares."""
PARTS = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
"""What an attempt spends its time on."""
RESTART, FAILED = "restart", "failed"
TROUBLE = ("skipped", "rollback", FAILED)
_KINDS = ("checkpoint", "preempted", "skipped", "rollback", "replay")
"""Kinds of events that are shown with their values."""


class Rows(tuple[Row, ...]):
    """Rows of a log, with its columns as arrays."""

    def column(self, name: str) -> np.ndarray:
        """Return a column as float64 `[rows]`, NaN where a row has no number of it."""
        columns = self.__dict__.setdefault("_columns", {})
        if name not in columns:
            found = (row.get(name) for row in self)
            numbers = [value if isinstance(value, int | float) else np.nan for value in found]
            columns[name] = np.array(numbers, np.float64)
        return columns[name]

    def last(self, name: str) -> float | None:
        """Return the last number of a column; None if there is none."""
        known = self.column(name)[np.isfinite(self.column(name))]
        return float(known[-1]) if known.size else None


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its directory.
        name: a short name, unique among the runs that were read together.
        metrics: rows of `metrics.jsonl` by ascending step; a repeated step replaces its old row.
        layers: rows of `layers.jsonl`, in the same way.
        events: all rows of `events.jsonl` in the order of time, with the keys `event`, `time`,
            `step` and `samples`.
        config: `config.json`; empty if there is none.
        summary: what `summary.json` knows; empty if there is none.
        remarks: one sentence for each file that is missing or damaged.
        trial: its row in `results.csv` of its sweep; None for a run that is no trial.
    """

    path: Path
    name: str
    metrics: Rows = dataclasses.field(default_factory=Rows)
    layers: Rows = dataclasses.field(default_factory=Rows)
    events: tuple[Row, ...] = ()
    config: Row = dataclasses.field(default_factory=dict)
    summary: Row = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    trial: Trial | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The resolved options, `section.key` → value."""
        sections = self.config.get("config", {})
        return {
            f"{s}.{key}": value for s, chosen in sections.items() for key, value in chosen.items()
        }

    @property
    def step(self) -> int:
        """The last step that any file mentions."""
        rows = (*self.metrics[-1:], *self.events[-1:])
        return max(self.summary.get("steps", 0), *(row["step"] for row in rows), 0)

    @property
    def status(self) -> str:
        """The status in `summary.json`; `unfinished` without one or if the log has newer rows.

        A trial that its sweep has ended early is `pruned`.
        """
        if self.trial and self.trial.state == "pruned":
            return "pruned"
        last = self.metrics[-1]["step"] if self.metrics else 0
        is_old = last > self.summary.get("steps", 0)
        return "unfinished" if is_old else self.summary.get("status", "unfinished")

    @property
    def is_complete(self) -> bool:
        """Whether the training reached its end and all of it was logged."""
        return self.status == "complete"


class Mark(NamedTuple):
    """An event that the report shows."""

    kind: str  # start, restart, evaluation, hosts, slow host, failed or one of _KINDS
    time: float  # Unix seconds
    step: int
    samples: float
    text: str  # details for readers; may be empty


def trials_of(path: Path) -> list[Path]:
    """Return the runs of a sweep by trial number; none if the directory is not a sweep's."""
    return [trial for trial in results.trial_directories(path) if is_run(trial)]


def is_run(path: Path) -> bool:
    """Return whether a directory has any of the files that a training writes."""
    return any((path / file).is_file() for file in _FILES)


def load(paths: Sequence[Path]) -> tuple[Run, ...]:
    """Read runs; each is named by the shortest end of its path that distinguishes it.

    Raises:
        DataError: a path is not the directory of a run, or is given twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("RUN: the same run is given twice; give each directory once")
    full = [Path(os.path.abspath(path)) for path in paths]  # a link keeps its own name
    length = 1
    while len({path.parts[-length:] for path in full}) < len(full):
        length += 1
    sweeps = functools.cache(results.trials_by_number)  # a file of results is read once
    made = []
    for path in full:
        trials = sweeps(path.parent.parent) if results.is_trial(path) else {}
        trial = trials.get(int(path.name)) if path.name.isdecimal() else None
        made.append(_load(path, "/".join(path.parts[-length:]), trial))
    return tuple(made)


def _load(path: Path, name: str, trial: Trial | None) -> Run:
    if not is_run(path):
        if results.is_sweep(path):
            raise DataError(f"{path}: no trial of this sweep has started; wait for the first one")
        found = "contains none of" if path.is_dir() else "is not a directory with"
        raise DataError(
            f"{path} {found} {', '.join(_FILES)}; give the --workdir of a training or a sweep"
        )
    remarks: list[str] = []

    def read(file: str, function: Callable[[Path], Any], default: Any) -> Any:
        try:
            (path / file).stat()  # a missing file is an empty log to `read_rows`
            return function(path / file)
        except FileNotFoundError:
            remarks.append(f"There is no {file}.")
        except OSError as error:
            remarks.append(f"{file} cannot be read ({error.strerror}).")
        except UserError as error:
            remarks.append(str(error))
        except ValueError:
            remarks.append(f"{file} is damaged and was left out.")
        return default

    metrics, layers, events = (
        read(file, _rows, []) for file in ("metrics.jsonl", "layers.jsonl", "events.jsonl")
    )
    config, summary = (read(file, _fields, {}) for file in ("config.json", "summary.json"))
    summary = {key: value for key, value in summary.items() if value is not None}
    return Run(
        *(path, name, current(metrics), current(layers), tuple(events), config, summary),
        remarks=tuple(remarks),
        trial=trial,
    )


def _rows(path: Path) -> list[Row]:
    """Read the rows of a log.

    Raises:
        ValueError: another program wrote it.
    """
    rows = read_rows(path)
    needed = ("step", "samples", "time") if path.name == "events.jsonl" else ("step",)
    if not all(isinstance(row.get(key), int | float) for row in rows for key in needed):
        raise ValueError(path)
    return rows


def _fields(path: Path) -> Row:
    """Read an object whose fields that the report takes apart have the right types.

    Raises:
        ValueError: another program wrote it.
    """
    found = read_json(path)
    sections = found.get("config", {}) if isinstance(found, dict) else None
    is_ours = isinstance(sections, dict) and all(isinstance(v, dict) for v in sections.values())
    if not is_ours or not isinstance(found.get("steps", 0), int):
        raise ValueError(path)
    return found


def current(rows: Sequence[Row]) -> Rows:
    """Return one row for each step: where a log goes back, the later rows replace the old ones."""
    kept: list[Row] = []
    for row in rows:
        while kept and kept[-1]["step"] > row["step"]:
            kept.pop()
        if kept and kept[-1]["step"] == row["step"]:
            kept[-1] = {**kept[-1], **row}
        else:
            kept.append(row)
    return Rows(kept)


def attempts_of(events: Sequence[Row]) -> list[tuple[Row, Mapping[str, float]]]:
    """Return the first event of each run attempt, and the seconds of each of PARTS.

    Each start of `train.py` on a run directory begins an attempt, with one of ATTEMPT_EVENTS. The
    times are those of its last `times` event; empty if it wrote none.
    """
    found: list[tuple[Row, Mapping[str, float]]] = []
    for event in events:
        if event["event"] in ATTEMPT_EVENTS:
            found.append((event, {}))
        elif event["event"] == "times" and found:
            names = ("compile_s", "wait_s", "train_s", "evaluation_s", "checkpoint_s", "other_s")
            values = [max(0.0, event.get(name, 0.0)) for name in names]
            values[2] = max(0.0, values[2] - values[1])  # train_s includes the waits
            found[-1] = (found[-1][0], dict(zip(PARTS, values, strict=True)))
    return found


def marks(events: Sequence[Row]) -> list[Mark]:
    """Return the events that the report shows, in order."""
    found, attempts = [], 0
    for event in events:
        kind = event["event"]
        if kind in ATTEMPT_EVENTS:
            attempts += 1
            kind, text = (RESTART if attempts > 1 else "start"), f"attempt {attempts}"
            text += f", resumed after step {event['step']}" if attempts > 1 else ""
            if event.get("device_kind"):
                text += f", {event.get('devices')} × {event['device_kind']}"
        elif kind == "eval_stop":
            top1 = event.get("top1")
            kind, text = "evaluation", "" if top1 is None else f"top-1 {100 * top1:.2f} %"
        elif kind == "hosts":
            kind, text = "slow host" if event.get("slow") else kind, _host_text(event)
        elif kind == "unhealthy":
            kind, text = FAILED, event.get("why") or ""
        elif kind in _KINDS:
            values = {k: v for k, v in event.items() if k not in Mark._fields and k != "event"}
            text = ", ".join(
                f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in values.items()
            )
        else:
            continue
        found.append(Mark(kind, event["time"], event["step"], event["samples"], text))
    return found


def _host_text(event: Row) -> str:
    slowest, hosts = event.get("slowest", -1), event.get("host") or ()
    if slowest < 0 or event.get("factor") is None:
        return ""
    name = f" on {hosts[slowest]}" if slowest < len(hosts) else ""
    cause = f", {event['cause']}" if event.get("cause") else ""
    return f"process {slowest}{name} takes {event['factor']:.2f} × the median{cause}"


def curve(rows: Rows, name: str, points: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a column against every axis, thinned; rows without the column are left out.

    Args:
        rows: rows of the log, in order.
        name: column.
        points: bound of `thinned`.

    Returns:
        x of each axis and y, float64 `[points]`; y is NaN where a value was not finite.
    """
    chosen = np.flatnonzero([name in row for row in rows])
    chosen = chosen[thinned(rows.column(name)[chosen], points)]
    x = {axis: rows.column(column)[chosen] for axis, column in AXES.items()}
    return x, rows.column(name)[chosen]


def thinned(y: np.ndarray, points: int) -> np.ndarray:
    """Return the indices of the points that show every peak, dip and gap of a curve.

    The points are divided into equal intervals. Each keeps its least and greatest y, and one NaN if
    it has any. The first and the last point remain too.

    Args:
        y: `[n]`.
        points: at least 2; at most 3 / 2 of this number remain, and 2.
    """
    count = len(y)
    if count <= points:
        return np.arange(count)
    kept = {0, count - 1}
    edges = np.linspace(0, count, max(1, points // 2) + 1).astype(int)
    for begin, end in itertools.pairwise(edges):
        part = y[begin:end]
        missing = np.isnan(part)
        if missing.any():
            kept.add(begin + int(np.argmax(missing)))
        if not missing.all():
            kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    return np.array(sorted(kept))


def place(rows: Rows, samples: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the positions of moments given in samples, on each axis `[moments]`; NaN if unknown.

    Epochs are proportional to samples; times are interpolated between rows.
    """
    at = np.asarray(samples, np.float64)
    found = {"samples": at}
    for axis in ("epochs", "time"):
        known, value = rows.column("samples"), rows.column(AXES[axis])
        good = np.isfinite(known) & np.isfinite(value)
        known, value = known[good], value[good]
        if not known.size:
            found[axis] = np.full_like(at, np.nan)
        elif axis == "epochs":
            found[axis] = at * value[-1] / max(known[-1], 1.0)
        else:
            found[axis] = np.interp(at, known, value)
    return found
