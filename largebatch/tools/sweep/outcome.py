"""Trials and what becomes of them; pure."""

import dataclasses
import math
import signal
from collections.abc import Sequence
from typing import Any, Literal

from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep.reading import Seen
from largebatch.tools.sweep.space import Choice

State = Literal["waiting", "running", "complete", "diverged", "pruned", "failed"]
ENDED: tuple[State, ...] = ("complete", "diverged", "pruned", "failed")
Objective = Literal["top1", "loss", "target_s"]
Asked = Literal["", "prune", "stop"]
MOST_RESTARTS = 3
"""Times in a row that a trial is started again without having come a step further."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A row of a sweep.

    Attributes:
        number: from 0; its directory is ``trials/NUMBER``.
        values: what it changes.
        state: where it stands.
        value: the objective, infinite for the worst; None while there is none.
        top1: of the newest evaluation, a fraction.
        loss: validation loss.
        step: optimizer steps done.
        seconds: wall time of all its turns.
        error: why it failed, in one line.
    """

    number: int
    values: Choice
    state: State = "waiting"
    value: float | None = None
    top1: float | None = None
    loss: float | None = None
    step: int | None = None
    seconds: float | None = None
    error: str = ""

    def with_seen(self, seen: Seen) -> "Trial":
        """The row with what its directory says."""
        return dataclasses.replace(
            self,
            top1=final_top1(seen),
            loss=final_loss(seen),
            step=seen.step,
            seconds=self.seconds if seen.seconds is None else seen.seconds,
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the end of a process means for its trial.

    ``running``: it has not come to an end, and is started again, now or by the same command.
    """

    state: State
    value: float | None = None
    error: str = ""


def maximised(objective: Objective) -> bool:
    """Whether more is better."""
    return objective == "top1"


def worst(objective: Objective) -> float:
    """What a trial that came to nothing counts for: as no correct guess, or as never."""
    return 0.0 if maximised(objective) else math.inf


def final_top1(seen: Seen) -> float | None:
    """Top-1 at the end of a trial that is done, of the newest evaluation before."""
    found = seen.summary.top1 if seen.done and seen.summary else None
    return seen.top1 if found is None else found


def final_loss(seen: Seen) -> float | None:
    """Validation loss, likewise; None also where it is not finite, which JSON has no word for."""
    found = seen.summary.loss if seen.done and seen.summary else None
    return seen.evaluations[-1][1] if found is None and seen.evaluations else found


def value_of(seen: Seen, objective: Objective) -> float | None:
    """The objective of a trial that is done; None where it was not evaluated, or to no number.

    A target that was never reached counts as infinitely late.
    """
    if objective == "top1":
        return final_top1(seen)
    if objective == "loss":
        return final_loss(seen)
    late = seen.summary.target_s if seen.summary else None
    if late is None:
        return None if final_top1(seen) is None else math.inf
    return late


def intermediate(seen: Seen, objective: Objective) -> list[float]:
    """What pruning compares after each evaluation, the objective or, for a time, 1 − top-1.

    Not finite is the worst. Trials are compared evaluation by evaluation rather than step by
    step, which batches of other sizes do not share.
    """
    found = []
    for top1, loss in seen.evaluations:
        # A time is minimised, and so is what stands for it: the share that is still wrong.
        value = {"top1": top1, "loss": loss, "target_s": None if top1 is None else 1 - top1}
        known = value[objective] is not None and math.isfinite(value[objective])
        found.append(value[objective] if known else worst(objective))
    return found


def outcome(code: int, asked: Asked, seen: Seen, objective: Objective, said: str) -> Outcome:
    """What has become of a trial whose process has ended.

    Args:
      code: its exit code; negative for a signal.
      asked: whether the sweep had asked it to end, and why.
      seen: its directory.
      objective: of the sweep.
      said: the line of its output that says why it ended.
    """
    if seen.done and code == 0:
        value = value_of(seen, objective)
        if value is None or math.isnan(value):
            if seen.evaluations:
                why = f"its validation {objective} is not finite"
                return Outcome("diverged", worst(objective), why)
            return Outcome("failed", error="it was never evaluated; see run.evaluate_every")
        return Outcome("complete", value)
    if asked == "prune":
        return Outcome("pruned")
    if asked == "stop" or code == PREEMPTED:
        return Outcome("running")
    if code == MISTAKE and seen.unhealthy:
        return Outcome("diverged", worst(objective), seen.unhealthy)
    if code < 0:
        return Outcome("failed", error=_killed(-code, said))
    return Outcome("failed", error=said or f"it ended with exit code {code} and said nothing")


def _killed(number: int, said: str) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (short of memory?)" if number == signal.SIGKILL else ""
    return f"killed by {name}{hint}" + (f", after: {said}" if said else "")


def ranked(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """The best first; then those that diverged, were pruned, failed and have not ended."""
    order = ("complete", "diverged", "pruned", "failed", "running", "waiting")

    def key(trial: Trial) -> tuple[Any, ...]:
        if trial.value is not None:
            figure = -trial.value if maximised(objective) else trial.value
        elif objective == "loss":  # by how far they had come
            figure = math.inf if trial.loss is None else trial.loss
        else:
            figure = -(trial.top1 or 0.0)
        return order.index(trial.state), figure, trial.number

    return sorted(trials, key=key)


def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
    """The winner, or None if none has come to its end."""
    found = ranked([trial for trial in trials if trial.state == "complete"], objective)
    return found[0] if found else None
