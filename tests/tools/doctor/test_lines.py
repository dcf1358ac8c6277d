"""Lines: verdicts, remedies, and one page from those of many processes."""

import threading
from unittest import mock

from largebatch.errors import DataError
from largebatch.fault_tolerance import HUNG
from largebatch.tools.doctor import examination
from largebatch.tools.doctor.lines import (
    Line,
    Problem,
    Skip,
    as_json,
    as_text,
    attempted,
    merged,
)


def ok(name, found):
    return Line(name, "OK", found)


def problem(name, found, remedy):
    return Line(name, "PROBLEM", found, remedy)


def test_what_a_check_returns_or_raises_is_its_line():
    def check(error):
        raise error

    problems = Problem(("x is 1", "unset x"), ("y is 2", "unset y"), ("z", "unset x"))
    assert attempted("a", lambda: "fine") == ok("a", "fine")
    assert attempted("a", lambda: check(Skip("none"))) == Line("a", "SKIP", "none")
    assert attempted("a", lambda: check(problems)) == problem(
        "a", "x is 1; y is 2; z", "unset x; unset y"
    )
    refused = attempted("a", lambda: check(DataError("shard 7 is missing; restore it")))
    assert refused == problem("a", "shard 7 is missing", "restore it")
    line = attempted("clock", lambda: check(KeyError("x")))
    assert line.verdict == "PROBLEM"
    assert "KeyError: 'x'" in line.found


def test_hosts_with_a_problem_are_named_and_grouped():
    hosts = ["n0", "n1", "n2", "n2", "n3", "n4", "n5"]
    lines = [[ok("disk", f"{i} GiB")] for i in range(7)]
    for i in (1, 2, 3, 4, 5):
        lines[i] = [problem("disk", "0 GiB", "free some")]
    lines[6] = [problem("disk", "read only", "remount")]
    (line,) = merged(lines, hosts)
    assert line.found == "n1, n2, n3 and 1 more: 0 GiB; n5: read only"
    assert line.remedy == "free some; remount"
    # A line that only the second process has is kept.
    assert merged([[], lines[6]], ["a", "b"])[0].found == "b: read only"


def test_a_host_that_could_check_counts_before_those_that_could_not():
    skipped = Line("GPU", "SKIP", "none")
    lines = [[skipped, ok("a", "x")], [ok("GPU", "1 GPU"), ok("a", "y")]]
    assert merged(lines, ["n0", "n1"]) == [ok("GPU", "1 GPU"), ok("a", "x")]


def test_the_page_has_the_remedy_below_each_problem():
    lines = [ok("disk", "9 GiB"), problem("open files", "256", "ulimit -n 4096")]
    rows = as_text(lines).plain.splitlines()
    assert rows[0] == "OK       disk        9 GiB"
    assert rows[1] == "PROBLEM  open files  256"
    assert rows[2].strip() == "→ ulimit -n 4096"
    kept = as_json(lines, devices=False)
    assert (kept["well"], kept["environment"]) == (False, None)
    assert kept["lines"][1] == {
        "name": "open files",
        "verdict": "PROBLEM",
        "found": "256",
        "remedy": "ulimit -n 4096",
    }
    assert as_json(lines[:1])["well"]


def test_a_stage_ends_the_process_at_its_limit(monkeypatch, capsys):
    ended, codes, stacks = threading.Event(), [], mock.Mock()
    monkeypatch.setattr(examination.os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(examination.faulthandler, "dump_traceback", stacks)
    with examination.time_limit("reading", 0):
        assert not ended.wait(0.3)
    with examination.time_limit("measuring", 0.1):
        assert ended.wait(300)
    assert codes == [HUNG]
    stacks.assert_called_once()
    assert "--limit_s" in capsys.readouterr().err
