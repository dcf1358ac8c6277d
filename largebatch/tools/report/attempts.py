"""Run attempts, their time, and the events of a run.

Each start of `train.py` on a run directory begins an attempt; its event is named `turn`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from largebatch.tools.report.runs import Row, is_number

PARTS = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
"""What an attempt spends its time on."""
RESTART, FAILED = "restart", "failed"
TROUBLE = ("skipped", "rollback", FAILED)
_KINDS = ("checkpoint", "preempted", "skipped", "rollback", "replay")
"""Kinds of events that are shown with their values."""
_NAMES = {"eval_stop": "evaluation", "hosts": "hosts", "unhealthy": FAILED, "turn": RESTART}
"""Names of events in the log, where they differ from the kind."""


@dataclasses.dataclass
class Attempt:
    """One attempt.

    Attributes:
        facts: its first event: time, devices, versions.
        times: its last `times` event; empty if it wrote none.
    """

    facts: Row
    times: Row = dataclasses.field(default_factory=dict)


class Mark(NamedTuple):
    """An event.

    Attributes:
        kind: start, restart, evaluation, hosts, slow host, failed or one of _KINDS.
        time: Unix seconds.
        step: steps completed.
        samples: samples consumed.
        text: details for people; may be empty.
    """

    kind: str
    time: float
    step: int
    samples: float
    text: str


def attempts_of(events: Sequence[Row]) -> list[Attempt]:
    """Return the run attempts in order."""
    found: list[Attempt] = []
    for event in events:
        if event["event"] == "turn":
            found.append(Attempt(event))
        elif event["event"] == "times" and found:
            found[-1].times = event
    return found


def split(times: Row) -> dict[str, float]:
    """Return the seconds of each of PARTS from a `times` event, whose `train_s` includes waits."""
    names = ("compile_s", "wait_s", "train_s", "evaluation_s", "checkpoint_s", "other_s")
    known = (times.get(name) for name in names)
    values = [max(0.0, float(value)) if is_number(value) else 0.0 for value in known]
    values[2] = max(0.0, values[2] - values[1])
    return dict(zip(PARTS, values, strict=True))


def marks(events: Sequence[Row]) -> list[Mark]:
    """Return the events that the report shows, in order."""
    found, attempts = [], 0
    for event in events:
        kind = _NAMES.get(event["event"], event["event"])
        text = ", ".join(f"{key} {_shown(v)}" for key, v in event.items() if key not in _USED)
        if event["event"] == "turn":
            attempts += 1
            kind = RESTART if attempts > 1 else "start"
            text = f"attempt {attempts}"
            text += f", resumed after step {event['step']}" if attempts > 1 else ""
            if event.get("device_kind"):
                text += f", {event.get('devices')} × {event['device_kind']}"
        elif kind == "evaluation":
            text = f"top-1 {100 * event['top1']:.2f} %" if is_number(event.get("top1")) else ""
        elif kind == "hosts":
            kind, text = "slow host" if event.get("slow") else kind, _host_text(event)
        elif kind == FAILED:
            text = str(event.get("why") or "")
        elif kind not in _KINDS:
            continue
        found.append(Mark(kind, event["time"], event["step"], event["samples"], text))
    return found


_USED = ("time", "event", "step", "samples")


def _host_text(event: Row) -> str:
    hosts, slowest = event.get("host"), event.get("slowest")
    if not isinstance(slowest, int) or slowest < 0 or not is_number(event.get("factor")):
        return ""
    name = f" on {hosts[slowest]}" if isinstance(hosts, list) and slowest < len(hosts) else ""
    cause = f", {event['cause']}" if event.get("cause") else ""
    return f"process {slowest}{name} takes {event['factor']:.2f} × the median{cause}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
