"""The lines of the page: a verdict, what was found, what to do."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from largebatch.errors import UserError, one_line
from largebatch.parallel.processes import agreed_minimum, gather

Verdict = Literal["OK", "PROBLEM", "SKIP"]


@dataclasses.dataclass(frozen=True)
class Line:
    """One check.

    Attributes:
        name: What was looked at.
        verdict: OK, PROBLEM, or SKIP where it could not be looked at.
        found: What was found, with numbers; of SKIP the reason.
        remedy: What to do about a problem.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.verdict == "PROBLEM") != bool(self.remedy):
            raise ValueError(f"{self.name}: a problem, and only that, has a remedy")


def ok(name: str, found: str) -> Line:
    """A line that is well."""
    return Line(name, "OK", found)


def problem(name: str, found: str, remedy: str) -> Line:
    """A line that should be mended before the job starts."""
    return Line(name, "PROBLEM", found, remedy)


def skip(name: str, reason: str) -> Line:
    """A line that could not be looked at."""
    return Line(name, "SKIP", reason)


def judged(name: str, found: str, problems: Sequence[tuple[str, str]]) -> Line:
    """OK with `found`, or the problems, each as (what, remedy), joined."""
    if not problems:
        return ok(name, found)
    words = "; ".join(what for what, _ in problems)
    # Two problems may have one remedy.
    return problem(name, words, "; ".join(dict.fromkeys(remedy for _, remedy in problems)))


def attempted(name: str, check: Callable[[], Line | Sequence[Line]]) -> list[Line]:
    """The lines of a check; what it raises is a problem, and the others still have their say."""
    try:
        found = check()
    except UserError as error:
        found, _, remedy = str(error).rpartition("; ")  # what is wrong; what to do about it
        return [problem(name, found or remedy, remedy if found else "see the message")]
    except Exception as error:
        said = f"{type(error).__name__}: {one_line(error)}"
        return [problem(name, f"the check failed with {said}", "see whether a run fails so too")]
    return [found] if isinstance(found, Line) else list(found)


def merged(lines: Sequence[Sequence[Line]], hosts: Sequence[str]) -> list[Line]:
    """The lines of all processes as one list, in the order of the first that has each.

    Args:
        lines: Of each process.
        hosts: The name of each one's host.

    Returns:
        A problem wherever one process has it, with the names of the hosts that do; else OK if all
        that looked found it so, in the words of the first.
    """
    if len(lines) == 1:
        return list(lines[0])
    found: dict[str, list[tuple[str, Line]]] = {}
    for host, own in zip(hosts, lines, strict=True):
        for line in own:
            found.setdefault(line.name, []).append((host, line))
    return [_one(name, each) for name, each in found.items()]


def _one(name: str, each: Sequence[tuple[str, Line]]) -> Line:
    bad = [(host, line) for host, line in each if line.verdict == "PROBLEM"]
    if not bad:
        good = [line for _, line in each if line.verdict == "OK"]
        return good[0] if good else each[0][1]
    where: dict[str, list[str]] = {}
    for host, line in bad:
        where.setdefault(line.found, []).append(host)
    words = "; ".join(f"{_names(hosts)}: {found}" for found, hosts in where.items())
    remedies = "; ".join(dict.fromkeys(line.remedy for _, line in bad))
    return problem(name, words, remedies)


def _names(hosts: Sequence[str]) -> str:
    """At most three names, and how many more."""
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def gathered(value: Any) -> list[Any]:
    """A JSON value of every process, in their order; each process must call it."""
    text = json.dumps(value).encode()
    # Lengths differ; the longest is found as the least of what is left to a bound.
    bound = 2**40
    longest = bound - agreed_minimum(bound - len(text))
    padded = np.frombuffer(text.ljust(longest), np.uint8)
    return [json.loads(row.tobytes()) for row in gather(padded)]


def gathered_lines(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of every process; each process must call it."""
    own = [dataclasses.asdict(line) for line in lines]
    return [[Line(**each) for each in found] for found in gathered(own)]
