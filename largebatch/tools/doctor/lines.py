"""The lines of the doctor's page: a verdict, what was found, what to do."""

import dataclasses
import datetime
import json
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from rich.text import Text

from largebatch.environment import environment
from largebatch.errors import UserError, one_line
from largebatch.parallel.processes import agreed_minimum, gather

Verdict = Literal["OK", "PROBLEM", "SKIP"]
_STYLES = {"OK": "green", "PROBLEM": "bold red", "SKIP": "dim"}


@dataclasses.dataclass(frozen=True)
class Line:
    """The result of one check.

    Attributes:
        name: what was checked.
        verdict: OK, PROBLEM, or SKIP if it could not be checked.
        found: what was found, with numbers; for SKIP the reason.
        remedy: what to do about a problem.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


class Skip(Exception):
    """A check is not possible; the message is the reason."""


class Problem(Exception):
    """A check found problems: pairs of what and remedy."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        what, remedies = zip(*problems, strict=True)
        self.found, self.remedy = "; ".join(what), "; ".join(dict.fromkeys(remedies))
        super().__init__(self.found)


def attempted(name: str, check: Callable[[], str]) -> Line:
    """Return the line of a check, which returns what is well; any error it raises is a problem."""
    try:
        return Line(name, "OK", check())
    except Skip as reason:
        return Line(name, "SKIP", str(reason))
    except Problem as problem:
        return Line(name, "PROBLEM", problem.found, problem.remedy)
    except UserError as error:
        what, _, remedy = str(error).rpartition("; ")
        return Line(name, "PROBLEM", what or remedy, remedy if what else "see the message")
    except Exception as error:
        found = f"the check failed with {type(error).__name__}: {one_line(error)}"
        return Line(name, "PROBLEM", found, "see whether a run fails with it too")


def merged(lines: Sequence[Sequence[Line]], hosts: Sequence[str]) -> list[Line]:
    """Merge the lines of all processes.

    Args:
        lines: lines of each process.
        hosts: name of each process's host.

    Returns:
        For each name, a problem with the names of its hosts if any process has one; else the first
        line that is OK; else the first.
    """
    if len(lines) == 1:
        return list(lines[0])
    found: dict[str, list[tuple[str, Line]]] = {}
    for host, own in zip(hosts, lines, strict=True):
        for line in own:
            found.setdefault(line.name, []).append((host, line))
    return [_merged(name, each) for name, each in found.items()]


def _merged(name: str, each: Sequence[tuple[str, Line]]) -> Line:
    where: dict[str, list[str]] = {}
    for host, line in each:
        if line.verdict == "PROBLEM":
            where.setdefault(line.found, []).append(host)
    if not where:
        return next((line for _, line in each if line.verdict == "OK"), each[0][1])
    words = "; ".join(f"{_names(hosts)}: {found}" for found, hosts in where.items())
    remedies = dict.fromkeys(line.remedy for _, line in each if line.remedy)
    return Line(name, "PROBLEM", words, "; ".join(remedies))


def _names(hosts: Sequence[str]) -> str:
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def gathered(value: Any) -> list[Any]:
    """Return a JSON value of every process, in their order; each process must call this."""
    text = json.dumps(value).encode()
    bound = 2**40
    longest = bound - agreed_minimum(bound - len(text))
    padded = np.frombuffer(text.ljust(longest), np.uint8)
    return [json.loads(row.tobytes()) for row in gather(padded)]


def as_text(lines: Sequence[Line]) -> Text:
    """Return the page: a line for each check, with what to do below each problem."""
    label = max(len(line.name) for line in lines)
    page = Text()
    for line in lines:
        page.append(f"{line.verdict:<7}", _STYLES[line.verdict])
        page.append(f"  {line.name.ljust(label)}  ")
        page.append(f"{line.found}\n", "dim" if line.verdict == "SKIP" else "")
        if line.remedy:
            page.append(" " * (label + 11) + f"→ {line.remedy}\n", "yellow")
    counts = Counter(line.verdict for line in lines)
    bad = f"{counts['PROBLEM']} problem(s)" if counts["PROBLEM"] else "no problem found"
    return page.append(f"{bad}, {counts['OK']} OK, {counts['SKIP']} skipped")


def as_json(lines: Sequence[Line], *, devices: bool = True) -> dict[str, Any]:
    """Return the page for programs.

    Args:
        lines: the page.
        devices: whether JAX may be asked for its devices.
    """
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "environment": environment() if devices else None,
        "well": all(line.verdict != "PROBLEM" for line in lines),
        "lines": [dataclasses.asdict(line) for line in lines],
    }
