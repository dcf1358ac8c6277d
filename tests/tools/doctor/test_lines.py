"""Lines: verdicts, remedies, and one page from those of many processes."""

import pytest

from largebatch.errors import DataError
from largebatch.tools.doctor.lines import (
    Line,
    as_json,
    as_text,
    attempted,
    gathered,
    judged,
    merged,
    ok,
    problem,
    skip,
)


def test_a_problem_and_nothing_else_has_a_remedy():
    with pytest.raises(ValueError, match="remedy"):
        problem("disk", "full", "")
    with pytest.raises(ValueError, match="remedy"):
        Line("disk", "OK", "free", "buy another")


def test_two_problems_with_one_remedy_name_it_once():
    line = judged("a", "fine", [("x is 1", "unset x"), ("y is 2", "unset y"), ("z", "unset x")])
    assert (line.found, line.remedy) == ("x is 1; y is 2; z", "unset x; unset y")
    assert judged("a", "fine", []) == ok("a", "fine")


def test_what_a_check_raises_is_a_problem_of_its_own():
    def refuse():
        raise DataError("shard 7 is missing; restore it")

    def stumble():
        raise KeyError("x")

    (refused,) = attempted("data", refuse)
    assert (refused.found, refused.remedy) == ("shard 7 is missing", "restore it")
    (line,) = attempted("clock", stumble)
    assert line.verdict == "PROBLEM"
    assert "KeyError: 'x'" in line.found
    assert attempted("two", lambda: [ok("a", "1"), ok("b", "2")]) == [ok("a", "1"), ok("b", "2")]


def test_hosts_with_a_problem_are_named_and_grouped():
    hosts = ["n0", "n1", "n2", "n2", "n3", "n4", "n5"]
    lines = [[ok("disk", f"{i} GiB")] for i in range(7)]
    for i in (1, 2, 3, 4, 5):
        lines[i] = [problem("disk", "0 GiB", "free some")]
    lines[6] = [problem("disk", "read only", "remount")]
    (line,) = merged(lines, hosts)
    assert line.found == "n1, n2, n3 and 1 more: 0 GiB; n5: read only"
    assert line.remedy == "free some; remount"


def test_one_that_could_look_speaks_for_those_that_could_not():
    lines = [[skip("GPU", "none"), ok("a", "x")], [ok("GPU", "1 GPU"), ok("a", "y")]]
    assert merged(lines, ["n0", "n1"]) == [ok("GPU", "1 GPU"), ok("a", "x")]
    assert merged(lines[:1], ["n0"]) == lines[0]
    # A line that only the second process has is not lost.
    assert merged([[], [problem("plan", "no", "do")]], ["a", "b"])[0].found == "b: no"


def test_gathering_in_one_process_gives_the_value_back():
    value = {"text": "µs", "n": [1, 2.5, None]}
    assert gathered(value) == [value]


def test_the_page_has_the_remedy_below_each_problem():
    lines = [ok("disk", "9 GiB"), problem("open files", "256", "ulimit -n 4096"), skip("x", "one")]
    rows = as_text(lines).plain.splitlines()
    assert rows[0] == "OK       disk        9 GiB"
    assert rows[1] == "PROBLEM  open files  256"
    assert rows[2] == "                     → ulimit -n 4096"
    assert rows[-1].startswith("1 problem(s)")
    kept = as_json(lines, devices=False)
    assert (kept["well"], kept["environment"]) == (False, None)
    assert kept["lines"][1] == {
        "name": "open files",
        "verdict": "PROBLEM",
        "found": "256",
        "remedy": "ulimit -n 4096",
    }
    assert as_json(lines[:1])["well"]
