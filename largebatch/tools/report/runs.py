"""What is in the directory of a run, be it finished, broken off or still going on."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.errors import DataError, UserError
from largebatch.files import read_json
from largebatch.tools.report import array_summaries as shapes
from largebatch.tracking import read_rows

Row = Mapping[str, Any]
_EVIDENCE = ("metrics.jsonl", "config.json", "events.jsonl")


class Rows(tuple[Row, ...]):
    """Rows of a log; each of its columns is gathered once, for logs have many rows."""

    def column(self, name: str) -> np.ndarray:
        """A column as float64 `[rows]`; NaN where a row has no number of it."""
        kept = self.__dict__.setdefault("_columns", {})
        if name not in kept:
            kept[name] = np.array([_number(row.get(name)) for row in self], np.float64)
        return kept[name]

    def having(self, name: str) -> np.ndarray:
        """Which rows have a column, bool `[rows]`."""
        kept = self.__dict__.setdefault("_having", {})
        if name not in kept:
            kept[name] = np.array([name in row for row in self], bool)
        return kept[name]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: its directory.
        name: short, and of this run alone where several are read.
        metrics: rows of `metrics.jsonl` that count, in order of their step.
        layers: the same of `layers.jsonl`.
        events: rows of `events.jsonl`, all of them, as they happened.
        config: `config.json`; empty where there is none.
        summary: `summary.json`; empty where there is none.
        remarks: what is missing or damaged, a line each.
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
        return {
            f"{section}.{key}": value
            for section, chosen in self.config.get("config", {}).items()
            for key, value in chosen.items()
        }

    @property
    def step(self) -> int:
        """The last step that anything is known of."""
        return max(
            self.metrics[-1]["step"] if self.metrics else 0,
            *(event.get("step") or 0 for event in self.events[-1:]),
            self.summary.get("steps") or 0,
        )

    @property
    def status(self) -> str:
        """As of the summary; `unfinished` where rows are newer than it, or where there is none."""
        last = self.metrics[-1]["step"] if self.metrics else 0
        if last > (self.summary.get("steps") or 0):
            return "unfinished"
        return self.summary.get("status") or "unfinished"

    @property
    def is_complete(self) -> bool:
        """Whether it came to the end of its training, all of it logged."""
        return self.status == "complete"


def load(paths: Sequence[Path]) -> tuple[Run, ...]:
    """Reads runs; their names are as much of the ends of their paths as tells them apart.

    Raises:
        DataError: a directory is none of a run.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("the same run is named twice; name each directory once")
    whole = [Path(os.path.abspath(path)) for path in paths]  # links keep the names they have
    length = 1
    while len({path.parts[-length:] for path in whole}) < len(whole):
        length += 1
    return tuple(
        load_one(path, "/".join(full.parts[-length:]))
        for path, full in zip(paths, whole, strict=True)
    )


def is_run(path: Path) -> bool:
    """Whether a directory has any of the files that a training writes."""
    return any((path / file).is_file() for file in _EVIDENCE)


def load_one(path: Path, name: str) -> Run:
    """Reads one run; a file that is absent or damaged becomes a remark.

    Raises:
        DataError: it is no directory of a run.
    """
    if not is_run(path):
        what = "holds" if path.is_dir() else "is no directory:"
        raise DataError(
            f"{path} {what} none of {', '.join(_EVIDENCE)}; name the --workdir of a training"
        )
    remarks: list[str] = []
    stems = ("metrics", "layers", "events")
    metrics, layers, events = (_rows(path / f"{stem}.jsonl", remarks) for stem in stems)
    config = shapes.config(_json(path / "config.json", remarks), remarks)
    summary = shapes.summary(_json(path / "summary.json", remarks), remarks)
    return Run(
        path,
        name,
        current(metrics),
        current(layers),
        tuple(row for row in events if "event" in row),
        config,
        summary,
        tuple(remarks),
    )


def current(rows: Sequence[Row]) -> Rows:
    """The rows that count: where a log goes back, what it had from there on is replaced.

    Several rows of one step become one, of which the later values count.
    """
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


def _rows(path: Path, remarks: list[str]) -> list[Row]:
    if not path.is_file():
        remarks.append(f"There is no {path.name}.")
        return []
    try:
        return [shapes.row(row, path.name, remarks) for row in read_rows(path)]
    except UserError as error:
        remarks.append(str(error))
    except OSError as error:
        remarks.append(f"{path.name} cannot be read ({error.strerror}).")
    return []


def _number(value: object) -> float:
    return float(value) if shapes.is_number(value) else float("nan")


def _json(path: Path, remarks: list[str]) -> Row:
    try:
        return read_json(path)
    except FileNotFoundError:
        remarks.append(f"There is no {path.name}.")
    except OSError as error:
        remarks.append(f"{path.name} cannot be read ({error.strerror}).")
    except ValueError:
        remarks.append(f"{path.name} is damaged and was left out.")
    return {}
