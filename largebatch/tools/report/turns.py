"""The run attempts, what their time was spent on, and the events of a run.

Each start of the program on a run directory begins an attempt; events.jsonl calls it a turn.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from largebatch.tools.report.array_summaries import is_number
from largebatch.tools.report.runs import Row, Run

PARTS = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
"""What time is spent on."""
RESTART, FAILED = "restart", "failed"
TROUBLE = ("skipped", "rollback", FAILED)
KINDS = {
    "start": 7,
    RESTART: 7,
    "evaluation": 1,
    "checkpoint": 2,
    "preempted": 4,
    "slow host": 4,
    "skipped": 6,
    "rollback": 6,
    "replay": 5,
    FAILED: 6,
}
"""Kinds of events that are drawn, and the colour of each, an index among `palette.SERIES`."""


@dataclasses.dataclass
class Turn:
    """A run attempt: from a start of the program to its end.

    Attributes:
        began: Unix seconds.
        step: steps completed before.
        facts: what its `turn` event says: devices, versions and so on; empty in older logs.
        times: of its last `times` event, seconds since it began; empty where it wrote none.
        seconds: from its first event to its last.
    """

    began: float
    step: int
    facts: Row = dataclasses.field(default_factory=dict)
    times: Row = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Mark(NamedTuple):
    """Something that happened."""

    kind: str
    """One of KINDS, or hosts."""
    time: float
    step: int
    samples: float
    text: str
    """What belongs to it, for people; may be empty."""


def turns_of(events: Sequence[Row]) -> list[Turn]:
    """Return the run attempts in order; `turn` begins one, in older logs `train_start`."""
    found: list[Turn] = []
    starts = set(_starts(events))
    for index, event in enumerate(events):
        now = float(event.get("time") or 0.0)
        if index in starts:
            facts = event if event["event"] == "turn" else {}
            found.append(Turn(now, event.get("step") or 0, facts))
        if found:
            found[-1].seconds = now - found[-1].began
            if event["event"] == "times":
                found[-1].times = event
    return found


def split(times: Row) -> dict[str, float]:
    """Seconds by PARTS, from a `times` event; data waits lie within its `train_s`."""
    wait = _seconds(times, "wait_s")
    values = (
        _seconds(times, "compile_s"),
        wait,
        max(0.0, _seconds(times, "train_s") - wait),
        _seconds(times, "evaluation_s"),
        _seconds(times, "checkpoint_s"),
        _seconds(times, "other_s"),
    )
    return dict(zip(PARTS, values, strict=True))


def splits(run: Run) -> list[tuple[str, dict[str, float]]]:
    """Return what each run attempt spent its time on: its title, and seconds by PARTS.

    Without any `times` event, what the summary says of the last attempt; the rest of the wall time
    is known only where that was the only one.
    """
    turns = turns_of(run.events)
    known = [(f"attempt {i}", split(t.times)) for i, t in enumerate(turns, 1) if t.times]
    if known or not run.summary:
        return known
    last = split(run.summary)
    if len(turns) < 2:
        spent = sum(last.values())
        last["other"] = max(0.0, _seconds(run.summary, "wall_s") - spent)
    title = "whole run" if len(turns) < 2 else f"attempt {len(turns)}"
    return [(title, last)] if sum(last.values()) else []


def marks(events: Sequence[Row]) -> list[Mark]:
    """What happened, in order."""
    found, count = [], 0
    starts = set(_starts(events))
    for index, event in enumerate(events):
        name, text = event["event"], ""
        if index in starts:
            count += 1
            name, text = "start" if count == 1 else RESTART, _attempt_text(count, event)
        elif name == "eval_stop":
            name = "evaluation"
            text = f"top-1 {100 * event['top1']:.2f} %" if is_number(event.get("top1")) else ""
        elif name == "hosts":
            name = "slow host" if event.get("slow") else "hosts"
            text = _host_text(event)
        elif name == "unhealthy":
            name, text = FAILED, str(event.get("why") or "")
        elif name not in ("checkpoint", "preempted", "skipped", "rollback", "replay"):
            continue
        else:
            text = _rest(event)
        samples = float(event.get("samples") or 0)
        found.append(
            Mark(name, float(event.get("time") or 0.0), event.get("step") or 0, samples, text)
        )
    return found


def _starts(events: Sequence[Row]) -> list[int]:
    """Indices of the events that begin run attempts."""
    found, trained = [], True
    for index, event in enumerate(events):
        if event["event"] == "turn" or (event["event"] == "train_start" and trained):
            found.append(index)
            trained = event["event"] == "train_start"
        elif event["event"] == "train_start":
            trained = True
    return found


def _attempt_text(number: int, event: Row) -> str:
    what = f"attempt {number}" + (f", resumed after step {event.get('step') or 0}" * (number > 1))
    device = event.get("device_kind")
    return f"{what}, {event.get('devices')} × {device}" if device else what


def _host_text(event: Row) -> str:
    hosts, slowest = event.get("host"), event.get("slowest")
    if not isinstance(slowest, int) or slowest < 0 or not is_number(event.get("factor")):
        return ""
    named = isinstance(hosts, list) and slowest < len(hosts)
    name = f" on {hosts[slowest]}" if named else ""
    cause = f", {event['cause']}" if event.get("cause") else ""
    return f"process {slowest}{name} takes {event['factor']:.2f} × the median{cause}"


def _rest(event: Row) -> str:
    known = ("time", "event", "step", "samples")
    return ", ".join(f"{key} {_shown(value)}" for key, value in event.items() if key not in known)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seconds(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    return max(0.0, float(value)) if is_number(value) else 0.0
