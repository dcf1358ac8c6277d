"""Trials: what their directories say while they run, and what the end of a process means."""

import dataclasses
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
Asked = Literal["", "prune", "stop"]
"""Why the sweep asked the process of a trial to end."""
OUTPUT = "output.txt"
"""What a trial printed in all its attempts, in its directory."""
_TAIL = 16_384


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


@dataclasses.dataclass(frozen=True)
class TrialFiles:
    """The files of a trial; a file that is absent or damaged counts as not there yet."""

    step: int | None = None  # optimizer steps done
    evaluations: tuple[Mapping[str, float | None], ...] = ()  # results by objective, in order
    seconds: float | None = None  # wall time of all attempts
    summary: Summary | None = None  # of the end of training or of `run.stop_after`; None before
    unhealthy: str = ""  # why the newest attempt was given up; empty if it was not

    def result(self, name: str) -> float | None:
        """Return a result at the end, or of the newest evaluation; None if it is not finite."""
        final = self.summary.fields().get(name) if self.summary else None
        return self.evaluations[-1].get(name) if final is None and self.evaluations else final

    def values(self, objective: Objective) -> list[float]:
        """Return what pruning compares after each evaluation; not finite is the worst.

        Trials are compared by evaluations, since batches of other sizes do not share steps. For
        ``target_s``, which is minimised, it is 1 − top-1.
        """
        found = []
        for results in self.evaluations:
            value = results.get("top1" if objective == "target_s" else objective)
            if value is None or not math.isfinite(value):
                found.append(worst(objective))
            else:
                found.append(1 - value if objective == "target_s" else value)
        return found


def is_accuracy(objective: Objective) -> bool:
    """Return whether an objective is a fraction to maximise; others are minimised."""
    return objective.endswith("top1")


def worst(objective: Objective) -> float:
    """Return the value of a trial without a result: no correct guess, or never."""
    return 0.0 if is_accuracy(objective) else math.inf


def after(
    trial: Trial,
    code: int,
    asked: Asked,
    seen: TrialFiles,
    objective: Objective,
    printed: str,
) -> Trial:
    """Return the row of a trial whose process has ended; ``running``: it must be started again.

    Args:
      trial: the row before.
      code: exit code; negative for a signal.
      asked: whether and why the sweep asked the process to end.
      seen: its directory.
      objective: of the sweep.
      printed: the line of its output that says why it ended.
    """
    row = dataclasses.replace(
        trial,
        top1=seen.result("top1"),
        loss=seen.result("loss"),
        step=seen.step,
        seconds=trial.seconds if seen.seconds is None else seen.seconds,
    )

    def ended(state: State, value: float | None = None, error: str = "") -> Trial:
        return dataclasses.replace(row, state=state, value=value, error=error)

    if seen.summary and code == 0:
        value = seen.result(objective)
        if objective == "target_s" and value is None and row.top1 is not None:
            value = math.inf  # the target was never reached
        if value is not None and not math.isnan(value):
            return ended("complete", value)
        if seen.evaluations:
            return ended("diverged", worst(objective), f"its validation {objective} is not finite")
        return ended("failed", error="it was never evaluated; see run.evaluate_every")
    if asked == "prune":
        return ended("pruned")
    if asked == "stop" or code == PREEMPTED:
        return ended("running", error=printed)
    if code == MISTAKE and seen.unhealthy:
        # The time to a target is unknown; other results are those of the newest evaluation.
        values = [] if objective == "target_s" else seen.values(objective)
        return ended("diverged", values[-1] if values else worst(objective), seen.unhealthy)
    if code < 0:
        hint = " (short of memory?)" if code == -signal.SIGKILL else ""
        return ended("failed", error=f"killed by signal {-code}{hint}; it printed last: {printed}")
    return ended("failed", error=printed or f"it ended with exit code {code} and printed nothing")


def read_files(workdir: Path) -> TrialFiles:
    """Read the directory of a trial, which may be absent, growing or left by a kill."""
    rows = _rows(workdir / "metrics.jsonl")
    summary = Summary.read(workdir)
    if summary is not None and summary.status not in ("complete", "stopped"):
        summary = None
    last = rows[-1] if rows else {}
    return TrialFiles(
        step=summary.steps if summary else last.get("step"),
        evaluations=tuple(
            {
                column.removeprefix("validation/"): _number(value)
                for column, value in row.items()
                if "/" in column
            }
            for row in rows
            if "validation/top1" in row
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
