"""Reading MLPerf's log of a run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from largebatch.errors import UserError


class Event(NamedTuple):
    """A line of a log.

    Attributes:
        key: what happened or is told.
        value: of what is told.
        metadata: where in the training, and so on.
        seconds: since 1970.
    """

    key: str
    value: Any
    metadata: Mapping[str, Any]
    seconds: float


def read_log(path: Path) -> list[Event]:
    """The events of `result_N.txt`, in order.

    Raises:
        UserError: the file is missing, or a line is none of a log's.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; name a log, result_N.txt") from error
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line.removeprefix(":::MLLOG "))
            event = Event(*(entry[key] for key in ("key", "value", "metadata", "time_ms")))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: line {number} of {len(lines)} is none of a log's; delete it"
            ) from error
        events.append(event._replace(seconds=event.seconds / 1000))
    return events


def interval(events: Sequence[Event], name: str) -> float:
    """Seconds between the first `<name>_start` and the last `<name>_stop`.

    Raises:
        UserError: one of them is missing.
    """
    starts = [event.seconds for event in events if event.key == f"{name}_start"]
    stops = [event.seconds for event in events if event.key == f"{name}_stop"]
    if not starts or not stops:
        raise UserError(f"the log has {len(starts)} {name}_start and {len(stops)} {name}_stop")
    return stops[-1] - starts[0]
