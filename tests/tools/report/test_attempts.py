"""Run attempts, their times, and events."""

import pytest

from largebatch.tools.report import charts
from largebatch.tools.report.attempts import attempts_of, marks, split
from largebatch.tools.report.runs import load
from tests.tools.report import made_up


@pytest.fixture
def run(tmp_path):
    (found,) = load([made_up.write(tmp_path / "one")])
    return found


def test_two_attempts_and_the_last_times_of_each(run):
    first, second = attempts_of(run.events)
    assert (first.facts["time"], first.facts["devices"]) == (made_up.BEGAN, 2)
    assert (second.facts["step"], second.facts["devices"]) == (13, 1)
    bars = charts.of_time(run)
    assert bars.unit == "seconds"
    assert [title for title, _ in bars.rows] == ["attempt 1", "attempt 2"]
    parts = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
    # 6 s of training, of which 2 were waits; then 7 and 0.5.
    assert bars.rows[0][1] == dict(zip(parts, (3.0, 2.0, 4.0, 1.0, 0.5, 2.0), strict=True))
    assert bars.rows[1][1] == dict(zip(parts, (1.0, 0.5, 6.5, 1.0, 0.5, 0.0), strict=True))


def test_rounding_makes_no_negative_time():
    assert split({"train_s": 1.0, "wait_s": 1.5, "other_s": -1e-9})["step"] == 0
    assert split({"other_s": -1e-9, "compile_s": "x"})["other"] == 0


def test_events(run):
    found = [(mark.kind, mark.step, mark.text) for mark in marks(run.events)]
    assert found == [
        ("start", 0, "attempt 1, 2 × H200"),
        ("evaluation", 10, "top-1 40.00 %"),
        ("checkpoint", 10, ""),
        ("slow host", 12, "process 1 on b takes 1.50 × the median, input"),
        ("preempted", 13, ""),
        ("restart", 13, "attempt 2, resumed after step 13, 1 × H200"),
        ("skipped", 15, ""),
        ("rollback", 16, "reason loss"),
    ]
