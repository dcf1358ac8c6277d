"""When a run first reached what it was to reach, also over several turns."""

import pytest

from largebatch.tracking import Target

ROWS = [
    {"step": 4, "seconds": 10.0, "loss": 2.0},
    {"step": 5, "seconds": 12.0, "validation/top1": 0.5},
    {"step": 10, "seconds": 20.0, "validation/top1": 0.76},
    {"step": 15, "seconds": 30.0, "validation/top1": 0.74},
]


def test_the_first_evaluation_that_reaches_it_counts():
    target = Target(0.7)
    told = [target.look(row["step"], row["seconds"], row["validation/top1"]) for row in ROWS[1:]]
    assert told == ["", "target 70.00% reached", ""]
    assert (target.step, target.seconds, target.best) == (10, 20.0, 0.76)
    assert target.rows() == [("target", "70.00% reached at step 10, after 20.0 s")]


def test_exactly_the_target_is_reached():
    target = Target(0.76)
    assert target.look(10, 20.0, 0.76)


def test_a_later_turn_knows_what_an_earlier_one_reached():
    target = Target(0.7, ROWS)
    assert (target.step, target.seconds) == (10, 20.0)
    assert target.look(20, 40.0, 0.8) == ""
    assert target.rows() == [("target", "70.00% reached at step 10, after 20.0 s")]


def test_rows_without_times_are_known_too():
    target = Target(0.5, [{"step": 5, "validation/top1": 0.5}])
    assert (target.step, target.seconds) == (5, None)
    assert target.rows() == [("target", "50.00% reached at step 5")]


@pytest.mark.parametrize(("rows", "text"), [((), "nothing was evaluated"), (ROWS, "best 76.00%")])
def test_what_was_not_reached_is_said(rows, text):
    assert Target(0.9, rows).rows() == [("target", f"90.00% not reached, {text}")]


def test_without_a_target_nothing_is_said():
    target = Target(0.0, ROWS)
    assert target.look(20, 1.0, 1.0) == ""
    assert (target.step, target.rows()) == (None, [])
