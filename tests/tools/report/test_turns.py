"""Run attempts, their times, and events."""

from pathlib import Path

from largebatch.tools.report.runs import Run
from largebatch.tools.report.turns import marks, split, splits, turns_of
from tests.tools.report import made_up
from tests.tools.report.made_up import EVENTS, event


def run(events=(), summary=None):
    return Run(Path("x"), "x", events=tuple(events), summary=summary or {})


def test_two_turns_and_the_last_times_of_each():
    first, second = turns_of(EVENTS)
    assert (first.began, first.step, first.facts["devices"]) == (made_up.BEGAN, 0, 2)
    assert (second.began - first.began, second.step, second.facts["devices"]) == (100, 13, 1)
    assert (first.seconds, second.seconds) == (13, 11)
    assert splits(run(EVENTS)) == [
        (
            "attempt 1",
            {
                "compile": 3.0,
                "data wait": 2.0,
                "step": 4.0,  # 6 s of training, of which 2 waited
                "evaluation": 1.0,
                "checkpoint": 0.5,
                "other": 2.0,
            },
        ),
        (
            "attempt 2",
            {
                "compile": 1.0,
                "data wait": 0.5,
                "step": 6.5,
                "evaluation": 1.0,
                "checkpoint": 0.5,
                "other": 0.0,
            },
        ),
    ]


def test_older_logs_have_turns_without_an_event_of_theirs():
    events = [event("train_start", 0), event("checkpoint", 5, 9), event("train_start", 20, 9)]
    assert [(turn.step, dict(turn.facts)) for turn in turns_of(events)] == [(0, {}), (9, {})]
    # One that was resumed by a newer version.
    events += [event("turn", 30, 9), event("train_start", 31, 9)]
    assert [turn.step for turn in turns_of(events)] == [0, 9, 9]


def test_without_times_the_summary_tells():
    summary = {
        "compile_s": 3.0,
        "train_s": 10.0,
        "wait_s": 4.0,
        "wall_s": 20.0,
        "checkpoint_s": None,
    }
    ((title, found),) = splits(run([event("train_start", 0)], summary))
    assert title == "whole run"
    assert list(found.values()) == [3, 4, 6, 0, 0, 7]  # in the order of PARTS
    # After a resume the wall time is that of all turns: what else it went into is not known.
    ((title, found),) = splits(run([event("train_start", 0), event("train_start", 9, 5)], summary))
    assert (title, found["other"]) == ("attempt 2", 0)
    assert splits(run()) == []
    assert splits(run(summary={"status": "preempted", "wall_s": None})) == []


def test_rounding_makes_no_negative_time():
    assert split({"train_s": 1.0, "wait_s": 1.5, "other_s": -1e-9})["step"] == 0
    assert split({"other_s": -1e-9})["other"] == 0


def test_what_happened():
    found = [(mark.kind, mark.step, mark.text) for mark in marks(EVENTS)]
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


def test_events_of_any_shape_are_taken():
    why = "the loss of step 26 is nan"
    assert marks([event("unhealthy", 1, 26, why=why)])[0][::4] == ("failed", why)
    odd = [{"event": "hosts"}, {"event": "eval_stop", "top1": None}, {"event": "unheard of"}]
    assert [mark.kind for mark in marks(odd)] == ["hosts", "evaluation"]
