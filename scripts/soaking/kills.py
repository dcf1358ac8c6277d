"""What a kill hit, and whether the next turn went on where it had to."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from largebatch.config import Plan
from soaking.turns import Turn

Hit = Literal["start-up", "compile", "step", "evaluation", "save", "closing"]
HITS: tuple[Hit, ...] = ("start-up", "compile", "step", "evaluation", "save", "closing")


@dataclasses.dataclass
class Kill:
    """One kill.

    Attributes:
        run: number of the run, from 1.
        turn: number of the turn at it, from 1.
        aim: what it was aimed at.
        after_s: seconds after the start of the process.
        process: which of several; '' for all.
        hit: what it hit, from what the run had reported last.
        row: step of the last row of metrics.jsonl then.
        checkpoint: step of the newest complete checkpoint then; 0: there was none.
        resumed: step that the run went on from; None if it never did.
        repeated: steps with a row that were computed again.
    """

    run: int
    turn: int
    aim: str
    after_s: float
    process: str
    hit: Hit
    row: int
    checkpoint: int
    resumed: int | None = None
    repeated: int | None = None


def hit(turn: Turn, row: int, plan: Plan) -> Hit:
    """What a turn was at when it was killed.

    Args:
        turn: the turn.
        row: last step in its history.
        plan: of the run. Where the next step ends in an evaluation, that step may have been hit
            instead: nothing is reported between them.
    """
    if turn.saving:
        return "save"
    if "compiled " not in turn.log:
        return "compile" if "compiling " in turn.log else "start-up"
    if row >= plan.steps:
        return "closing"
    following = row + 1
    return "evaluation" if following == plan.steps or plan.evaluates_at(following) else "step"


def resume(kills: Iterable[Kill], resumed: int, most: int) -> list[str]:
    """Notes where a run went on after kills; what was wrong with it.

    A checkpoint is written while steps go on, so after a kill in a save those since the one before
    it are repeated: at most twice the interval.

    Args:
        kills: those since the turn before that came so far.
        resumed: the step.
        most: greatest interval of checkpoints in steps.
    """
    found = []
    for kill in kills:
        kill.resumed, kill.repeated = resumed, max(0, kill.row - resumed)
        name = f"kill in turn {kill.turn} ({kill.hit}, after step {kill.row})"
        if resumed != kill.checkpoint:
            found.append(
                f"{name}: it went on from step {resumed}, the newest checkpoint was that of "
                f"{kill.checkpoint}"
            )
        if kill.repeated > 2 * most:
            found.append(
                f"{name}: {kill.repeated} steps were repeated, checkpoints are {most} apart"
            )
    return found


def table(kills: Sequence[Kill]) -> str:
    """What was hit, how often, and the most that was lost by it."""
    counts = Counter(kill.hit for kill in kills)
    rows = [("hit", "kills", "steps repeated, median and most")]
    for name in HITS:
        lost = sorted(k.repeated for k in kills if k.hit == name and k.repeated is not None)
        shown = f"{lost[(len(lost) - 1) // 2]}, {lost[-1]}" if lost else "-"
        rows.append((name, str(counts[name]), shown))
    rows.append(("all", str(len(kills)), str(max((k.repeated or 0 for k in kills), default=0))))
    return "\n".join(f"{a:<12}{b:>6}  {c}" for a, b, c in rows)
