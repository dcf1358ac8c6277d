"""The page: for people a line for each check with what to do below it, for machines JSON."""

import datetime
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from largebatch.environment import environment
from largebatch.tools.doctor.lines import Line

_STYLES = {"OK": "green", "PROBLEM": "bold red", "SKIP": "dim"}


def as_text(lines: Sequence[Line]) -> Text:
    """The page."""
    label = max(len(line.name) for line in lines)
    verdict = max(len(line.verdict) for line in lines)
    page = Text()
    for line in lines:
        page.append(line.verdict.ljust(verdict), _STYLES[line.verdict])
        page.append(f"  {line.name.ljust(label)}  ")
        page.append(line.found, "dim" if line.verdict == "SKIP" else "")
        page.append("\n")
        if line.remedy:
            page.append(" " * (verdict + label + 4) + f"→ {line.remedy}\n", "yellow")
    return page.append(summary(lines))


def summary(lines: Sequence[Line]) -> str:
    """How many of each verdict."""
    counts = Counter(line.verdict for line in lines)
    bad = counts["PROBLEM"]
    said = f"{bad} problem(s)" if bad else "no problem found"
    return f"{said}, {counts['OK']} well, {counts['SKIP']} not looked at"


def as_json(lines: Sequence[Line], *, devices: bool = True) -> dict[str, Any]:
    """The page with what it depends on.

    Args:
        lines: The page.
        devices: Whether JAX may be asked for its devices.
    """
    now = datetime.datetime.now(datetime.UTC)
    return {
        "time": now.isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "environment": environment() if devices else None,
        "well": all(line.verdict != "PROBLEM" for line in lines),
        "lines": [asdict(line) for line in lines],
    }
