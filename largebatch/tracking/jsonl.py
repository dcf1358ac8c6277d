"""The history of a run as JSON lines: `metrics.jsonl`, `layers.jsonl` and `events.jsonl`."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from largebatch.errors import UserError
from largebatch.files import appending, is_still, plain, replacing


class JsonlTracker:
    """Appends one JSON object per record, unbuffered: a killed process loses no complete row.

    `metrics.jsonl` holds `{"step": …, <name>: <value>, …}`, `layers.jsonl` holds
    `{"step": …, "samples": …, "layers": {<path>: {"trust_ratio": …, …}}}`; NaN and the infinities
    are written as null. Opening drops what a resumed run will write again: rows after
    `resume_step` and an incomplete last line. So the history of a resumed run equals that of an
    uninterrupted one.

    `events.jsonl` holds `{"time": <seconds since 1970>, "event": …, "step": …, "samples": …, …}`
    of all attempts; only an incomplete last line is dropped.
    """

    def __init__(self, workdir: Path, *, resume_step: int, again: bool = False) -> None:
        """Open the files.

        Args:
            workdir: run directory, created if absent.
            resume_step: step of the checkpoint resumed from; rows of later steps are dropped.
                0 is a new run, which starts without rows.
            again: whether the row of `resume_step` itself will be written again.
        """
        self._metrics = _open(workdir / "metrics.jsonl", resume_step - again)
        self._layers = _open(workdir / "layers.jsonl", resume_step)
        self._events = appending(workdir / "events.jsonl")
        self._streams = self._metrics, self._layers, self._events

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Append a row to `metrics.jsonl`; see `Tracker.scalars`.

        Raises:
            UserError: the files are no longer there.
            ValueError: a value is named `step`.
        """
        if "step" in values:
            raise ValueError("a scalar cannot be named 'step': that is the key of the row")
        self._check_present()
        _append(self._metrics, {"step": step, **values})

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Append a row to `layers.jsonl`.

        Args:
            step: optimizer steps completed.
            samples: training samples consumed.
            values: parameter path → {`trust_ratio`, `weight_norm`, `gradient_norm`}.
        """
        _append(self._layers, {"step": step, "samples": samples, "layers": values})

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Append a row to `events.jsonl`, except for `step`; see `Tracker.event`."""
        if name != "step":
            row = {"time": time.time(), "event": name, "step": step, "samples": samples}
            _append(self._events, row | values)

    def flush(self) -> None:
        """Write the rows from the system's cache to the disk.

        Raises:
            UserError: the files are no longer there.
        """
        self._check_present()
        for stream in self._streams:
            os.fsync(stream.fileno())

    def close(self) -> None:
        for stream in self._streams:
            os.fsync(stream.fileno())
            stream.close()

    def _check_present(self) -> None:
        """Raise a UserError if the files were removed or moved, since rows would be lost unseen."""
        for stream in self._streams:
            path = Path(stream.name)
            if not is_still(path, os.fstat(stream.fileno())):
                what = path if path.parent.is_dir() else path.parent
                raise UserError(
                    f"{what} was removed, renamed or replaced while the run was writing to it; put "
                    "it back, then the same command resumes from its newest checkpoint"
                )


ATTEMPT_EVENTS = ("attempt", "turn")
"""Names of the event with which a run attempt begins; the second is of older logs."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, also while a run is writing it.

    Args:
        path: `metrics.jsonl` or `layers.jsonl`.

    Returns:
        Its rows in file order, without an incomplete last line.

    Raises:
        UserError: the file is missing, or a line before the last is not a JSON object.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; use the directory of a run") from error
    rows = [_parse(line) for line in lines]
    if rows and rows[-1] is None:
        rows.pop()
    if None in rows:
        line = rows.index(None) + 1
        raise UserError(f"{path}: line {line} of {len(lines)} is not a JSON object; delete it")
    return rows


def _open(path: Path, resume_step: int) -> BinaryIO:
    """Drop what a run resumed at `resume_step` will write again, and open for appending."""
    with replacing(path) as kept:
        if resume_step > 0 and path.exists():
            with path.open("rb") as old:
                for line in old:
                    row = _parse(line)
                    # A damaged line is dropped wherever it is: a log must not stop a resume.
                    if row is not None and _step(row) <= resume_step:
                        kept.write(line.rstrip(b"\r\n") + b"\n")
    return appending(path)


def _append(stream: BinaryIO, row: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(row, allow_nan=False)
    except (TypeError, ValueError):  # rare: numbers of other libraries, NaN and the infinities
        text = json.dumps(plain(row), allow_nan=False)
    line = text.encode() + b"\n"
    while line:  # an unbuffered write may take only a part
        line = line[stream.write(line) :]


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None if it is incomplete, damaged or not an object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _step(row: Mapping[str, Any]) -> float:
    step = row.get("step")
    return step if isinstance(step, int) else float("inf")
