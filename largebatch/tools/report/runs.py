"""Read the directory of a run: complete, failed or still training."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.errors import DataError, UserError
from largebatch.files import read_json
from largebatch.tracking import read_rows

Row = Mapping[str, Any]
_FILES = ("metrics.jsonl", "config.json", "events.jsonl")
"""A directory with any of these is a run."""


def is_number(value: object) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    try:
        known = isinstance(value, int | float) and not isinstance(value, bool)
        return known and math.isfinite(value)
    except OverflowError:
        return False


class Rows(tuple[Row, ...]):
    """Rows of a log, with its columns as arrays."""

    def column(self, name: str) -> np.ndarray:
        """Return a column as float64 `[rows]`, NaN where a row has no number of it."""
        columns = self.__dict__.setdefault("_columns", {})
        if name not in columns:
            values = (row.get(name) for row in self)
            columns[name] = np.array([v if is_number(v) else np.nan for v in values], np.float64)
        return columns[name]


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
        summary: the numbers and the status in `summary.json`; empty if there is none.
        remarks: one sentence for each file that is missing or damaged.
    """

    path: Path
    name: str
    metrics: Rows = dataclasses.field(default_factory=Rows)
    layers: Rows = dataclasses.field(default_factory=Rows)
    events: tuple[Row, ...] = ()
    config: Row = dataclasses.field(default_factory=dict)
    summary: Row = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

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
        steps = (self.metrics[-1:], self.events[-1:])
        return max(
            self.summary.get("steps", 0), *(row["step"] for rows in steps for row in rows), 0
        )

    @property
    def status(self) -> str:
        """The status in `summary.json`; `unfinished` without one or if the log has newer rows."""
        last = self.metrics[-1]["step"] if self.metrics else 0
        is_old = last > self.summary.get("steps", 0)
        return "unfinished" if is_old else self.summary.get("status", "unfinished")

    @property
    def is_complete(self) -> bool:
        """Whether the training reached its end and all of it was logged."""
        return self.status == "complete"


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
    names = ["/".join(path.parts[-length:]) for path in full]
    return tuple(load_one(path, name) for path, name in zip(paths, names, strict=True))


def load_one(path: Path, name: str) -> Run:
    """Read one run; a file that is missing or damaged becomes a remark.

    Raises:
        DataError: the path is not the directory of a run.
    """
    if not is_run(path):
        found = "contains none of" if path.is_dir() else "is not a directory with"
        raise DataError(f"{path} {found} {', '.join(_FILES)}; give the --workdir of a training")
    remarks: list[str] = []
    metrics, layers, events = (
        _read(path / file, _rows, remarks) or []
        for file in ("metrics.jsonl", "layers.jsonl", "events.jsonl")
    )
    config = _read(path / "config.json", _config, remarks) or {}
    summary = _read(path / "summary.json", _summary, remarks) or {}
    return Run(
        path,
        name,
        current(metrics),
        current(layers),
        tuple(_event(row) for row in events if isinstance(row.get("event"), str)),
        config,
        {
            k: v
            for k, v in summary.items()
            if is_number(v) or (k == "status" and isinstance(v, str))
        },
        tuple(remarks),
    )


def current(rows: Sequence[Row]) -> Rows:
    """Return one row for each step: where a log goes back, the later rows replace the old ones."""
    kept: list[Row] = []
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        while kept and kept[-1]["step"] > step:
            kept.pop()
        if kept and kept[-1]["step"] == step:
            kept[-1] = {**kept[-1], **row}
        else:
            kept.append(row)
    return Rows(kept)


def _read(path: Path, read: Callable[[Path], Any], remarks: list[str]) -> Any:
    """Return what `read` makes of a file, or None and a remark."""
    try:
        return read(path)
    except FileNotFoundError:
        remarks.append(f"There is no {path.name}.")
    except OSError as error:
        remarks.append(f"{path.name} cannot be read ({error.strerror}).")
    except UserError as error:
        remarks.append(str(error))
    except ValueError:
        remarks.append(f"{path.name} is damaged and was left out.")
    return None


def _rows(path: Path) -> list[Row]:
    path.stat()  # a missing file is an empty log to `read_rows`
    return read_rows(path)


def _config(path: Path) -> Row:
    found = read_json(path)
    parts = {name: found.get(name, {}) for name in ("config", "plan", "environment")}
    sections = parts["config"].values() if isinstance(parts["config"], dict) else ()
    if not all(isinstance(part, dict) for part in (*parts.values(), *sections)):
        raise ValueError("not the configuration of a run")
    return parts


def _summary(path: Path) -> Row:
    found = read_json(path).items()
    return {k: v for k, v in found if is_number(v) or (k == "status" and isinstance(v, str))}


def _event(row: Row) -> Row:
    numbers = {key: row.get(key) for key in ("time", "step", "samples")}
    return {**row, **{key: value if is_number(value) else 0 for key, value in numbers.items()}}
