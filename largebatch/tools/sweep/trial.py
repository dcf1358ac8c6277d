"""Trials: what their directories say while they run, and what the end of a process means."""

import dataclasses
import functools
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from largebatch.errors import UserError
from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep.space import Choice
from largebatch.tracking.jsonl import ATTEMPT_EVENTS, read_rows
from largebatch.tracking.summary import Summary

State = Literal["waiting", "running", "complete", "diverged", "pruned", "failed"]
ENDED: tuple[State, ...] = ("complete", "diverged", "pruned", "failed")
Objective: TypeAlias = str
"""``top1``, ``loss``, ``target_s``; ``ema_top1`` or ``ema_loss`` of the averaged weights; or one of
them on a further validation set, such as ``NAME/top1``."""
OUTPUT = "output.txt"
"""What a trial printed in all its attempts, in its directory."""
_TAIL = 16_384


@dataclasses.dataclass(frozen=True)
class TrialFiles:
    """The files of a trial; a file that is absent or damaged counts as not there yet."""

    step: int | None = None  # optimizer steps done
    evaluations: tuple[tuple[float | None, float | None], ...] = ()  # (top-1, loss), in order
    further: tuple[Mapping[str, float | None], ...] = ()  # their further results by objective
    seconds: float | None = None  # wall time of all attempts
    summary: Summary | None = None  # of the end of training or of `run.stop_after`; None before
    unhealthy: str = ""  # why the newest attempt was given up; empty if it was not

    @property
    def top1(self) -> float | None:
        """Top-1 at the end, or of the newest evaluation; a fraction."""
        return self._newest(0, self.summary.top1 if self.summary else None)

    @property
    def loss(self) -> float | None:
        """Validation loss, likewise; None also if it is not finite, which JSON cannot hold."""
        return self._newest(1, self.summary.loss if self.summary else None)

    def _newest(self, index: int, final: float | None) -> float | None:
        return self.evaluations[-1][index] if final is None and self.evaluations else final

    def final(self, objective: Objective) -> float | None:
        """Return the value at the end of the trial; None if there is none."""
        if objective in ("top1", "loss"):
            return getattr(self, objective)
        return self.summary.fields().get(objective) if self.summary else None

    def last(self, objective: Objective) -> float:
        """Return the value of a trial that a health check has ended: of its newest evaluation.

        It is the worst without an evaluation, if its result is not finite, and for ``target_s``.
        """
        values = [] if objective == "target_s" else self.values(objective)
        return values[-1] if values else worst(objective)

    def values(self, objective: Objective) -> list[float]:
        """Return what pruning compares after each evaluation; not finite is the worst.

        Trials are compared by evaluations, since batches of other sizes do not share steps. For
        ``target_s``, which is minimised, it is 1 − top-1.
        """
        found = []
        every = self.further or ({},) * len(self.evaluations)
        for (top1, loss), further in zip(self.evaluations, every, strict=True):
            wrong = None if top1 is None else 1 - top1
            known = {"top1": top1, "loss": loss, "target_s": wrong, **further}
            value = known.get(objective)
            if value is None or not math.isfinite(value):
                value = worst(objective)
            found.append(value)
        return found


@dataclasses.dataclass(frozen=True)
class Trial:
    """A row of a sweep; the directory of a trial is ``trials/NUMBER``."""

    number: int  # from 0
    values: Choice  # the options that it changes
    state: State = "waiting"
    value: float | None = None  # the objective, infinite for the worst; None while there is none
    top1: float | None = None  # of the newest evaluation, a fraction
    loss: float | None = None  # validation loss
    step: int | None = None  # optimizer steps done
    seconds: float | None = None  # wall time of all attempts
    error: str = ""  # why it failed, in one line

    def with_seen(self, seen: TrialFiles) -> "Trial":
        """Return the row with the figures of its directory."""
        seconds = self.seconds if seen.seconds is None else seen.seconds
        return dataclasses.replace(
            self, top1=seen.top1, loss=seen.loss, step=seen.step, seconds=seconds
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the end of a process means; state ``running``: the trial must be started again."""

    state: State
    value: float | None = None
    error: str = ""


def is_accuracy(objective: Objective) -> bool:
    """Return whether an objective is a fraction to maximise; others are minimised."""
    return objective.endswith("top1")


def worst(objective: Objective) -> float:
    """Return the value of a trial without a result: no correct guess, or never."""
    return 0.0 if is_accuracy(objective) else math.inf


def outcome(
    code: int,
    asked: Literal["", "prune", "stop"],
    seen: TrialFiles,
    objective: Objective,
    printed: str,
) -> Outcome:
    """Return what has become of a trial whose process has ended.

    Args:
      code: exit code; negative for a signal.
      asked: whether and why the sweep asked the process to end.
      seen: its directory.
      objective: of the sweep.
      printed: the line of its output that says why it ended.
    """
    if seen.summary and code == 0:
        value = seen.final(objective)
        if objective == "target_s" and value is None and seen.top1 is not None:
            value = math.inf  # the target was never reached
        if value is not None and not math.isnan(value):
            return Outcome("complete", value)
        if seen.evaluations:
            why = f"its validation {objective} is not finite"
            return Outcome("diverged", worst(objective), why)
        return Outcome("failed", error="it was never evaluated; see run.evaluate_every")
    if asked == "prune":
        return Outcome("pruned")
    if asked == "stop" or code == PREEMPTED:
        return Outcome("running")
    if code == MISTAKE and seen.unhealthy:
        return Outcome("diverged", seen.last(objective), seen.unhealthy)
    if code < 0:
        hint = " (short of memory?)" if code == -signal.SIGKILL else ""
        return Outcome(
            "failed", error=f"killed by signal {-code}{hint}; it printed last: {printed}"
        )
    return Outcome("failed", error=printed or f"it ended with exit code {code} and printed nothing")


def ranked(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return the best first; then those that were pruned, failed and have not ended.

    Trials that diverged are among the complete ones by their value, after them where it is equal.
    """
    order = ("complete", "diverged", "pruned", "failed", "running", "waiting")
    sign = -1 if is_accuracy(objective) else 1

    def key(trial: Trial) -> tuple[int, float, int, int]:
        value = -(trial.top1 or 0.0) if trial.value is None else sign * trial.value
        place = order.index(trial.state)
        return max(1, place), value, place, trial.number

    return sorted(trials, key=key)


def read_files(workdir: Path) -> TrialFiles:
    """Read the directory of a trial, which may be absent, growing or left by a kill."""
    files = ("metrics.jsonl", "events.jsonl", "summary.json")
    return _read_files(workdir, tuple(_stamp(workdir / name) for name in files))


@functools.lru_cache(maxsize=1024)
def _read_files(workdir: Path, stamps: tuple[tuple[int, int], ...]) -> TrialFiles:
    """Read the directory; ``stamps`` are there so that unchanged files are not read again."""
    rows = _rows(workdir / "metrics.jsonl")
    summary = Summary.read(workdir)
    if summary is not None and summary.status not in ("complete", "stopped"):
        summary = None
    last = rows[-1] if rows else {}
    evaluated = [row for row in rows if "validation/top1" in row]
    return TrialFiles(
        step=summary.steps if summary else last.get("step"),
        evaluations=tuple(
            (_number(row["validation/top1"]), _number(row.get("validation/loss")))
            for row in evaluated
        ),
        further=tuple(
            {
                column.removeprefix("validation/"): _number(value)
                for column, value in row.items()
                if "/" in column and column not in ("validation/top1", "validation/loss")
            }
            for row in evaluated
        ),
        seconds=_number(summary.wall_s if summary else last.get("seconds")),
        summary=summary,
        unhealthy=_unhealthy(_rows(workdir / "events.jsonl")),
    )


def last_words(output: Path) -> str:
    """Return the newest error in the output of a trial, or its last line."""
    try:
        with output.open("rb") as stream:
            stream.seek(max(0, output.stat().st_size - _TAIL))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1].removeprefix("error: ")


def _stamp(path: Path) -> tuple[int, int]:
    """Time in ns and size in bytes of a file; (0, 0) without one."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_rows(path)
    except (UserError, OSError):  # absent, or damaged, which the trial itself reports
        return []


def _unhealthy(events: Sequence[dict[str, Any]]) -> str:
    for row in reversed(events):
        if row.get("event") == "unhealthy":
            return str(row.get("why", "")) or "unhealthy"
        if row.get("event") in ("train_start", *ATTEMPT_EVENTS):
            break
    return ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
