"""What the directory of a trial says, while it runs and after."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.errors import UserError
from largebatch.tracking.jsonl import read_rows
from largebatch.tracking.summary import Summary

OUTPUT = "output.txt"
"""What the trial printed, all turns of it, in its directory."""
_FILES = ("metrics.jsonl", "events.jsonl", "summary.json")
_DONE = ("complete", "stopped")
_TAIL = 16_384


@dataclasses.dataclass(frozen=True)
class Seen:
    """A trial as its files have it; whatever is not there yet is None.

    Attributes:
        step: optimizer steps done.
        top1: of the newest evaluation, a fraction.
        evaluations: (top-1, loss) of each so far, in order.
        seconds: wall time of all turns.
        done: whether it trained to its end, or to ``run.stop_after``.
        summary: ``summary.json``; None without one.
        unhealthy: why its newest turn was given up; empty if it was not.
    """

    step: int | None = None
    top1: float | None = None
    evaluations: tuple[tuple[float | None, float | None], ...] = ()
    seconds: float | None = None
    done: bool = False
    summary: Summary | None = None
    unhealthy: str = ""


Stamp = tuple[tuple[int, int] | None, ...]


def stamp(workdir: Path) -> Stamp:
    """Time and size of the files that `look` reads: while they are the same, so is what it says."""
    return tuple(_stamp(workdir / name) for name in _FILES)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def look(workdir: Path) -> Seen:
    """Read a trial's directory, which may be absent, growing or what a kill has left."""
    metrics, events, _ = (workdir / name for name in _FILES)
    rows = _rows(metrics)
    summary = Summary.read(workdir)
    evaluations = tuple(
        (_number(row.get("validation/top1")), _number(row.get("validation/loss")))
        for row in rows
        if "validation/top1" in row
    )
    last = rows[-1] if rows else {}
    done = summary is not None and summary.status in _DONE
    return Seen(
        step=summary.steps if done else last.get("step"),
        top1=evaluations[-1][0] if evaluations else None,
        evaluations=evaluations,
        seconds=_number(summary.wall_s if done else last.get("seconds")),
        done=done,
        summary=summary,
        unhealthy=_unhealthy(_rows(events)),
    )


def last_words(output: Path) -> str:
    """The line of a trial's output that says why it ended: its newest error, or its last line."""
    try:
        with output.open("rb") as stream:
            stream.seek(max(0, output.stat().st_size - _TAIL))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1].removeprefix("error: ")


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_rows(path)
    except UserError:  # none yet, or damaged: the trial's own to complain of
        return []


def _unhealthy(events: Sequence[Mapping[str, Any]]) -> str:
    for row in reversed(events):
        if row.get("event") == "unhealthy":
            return str(row.get("why", "")) or "unhealthy"
        if row.get("event") in ("train_start", "turn"):
            break
    return ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
