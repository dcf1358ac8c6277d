"""The summary of a run as a file, and when a run reached its target."""

import json
import math
from dataclasses import replace

import pytest

from largebatch.tracking import Summary, Target

DONE = Summary(
    status="complete",
    top1=0.7508,
    top5=0.92,
    loss=1.1,
    steps=1408,
    samples=115_343_360,
    wall_s=74.7,
    compile_s=12.0,
    images_per_s=1.73e6,
)


def test_summary_round_trip(tmp_path):
    path = DONE.write(tmp_path / "run")
    assert path == tmp_path / "run/summary.json"
    assert Summary.read(path.parent) == DONE
    further = replace(DONE, ema_top1=0.76, sets={"v2/top1": 0.63})
    further.write(path.parent)
    more = {"v2/top1": 0.63, "ema_top1": 0.76}
    assert json.loads(path.read_text()) == DONE.fields() | more  # absent where there is none
    assert Summary.read(path.parent) == further
    path.write_text("{")
    assert Summary.read(path.parent) is None


def test_diverged_summary_is_valid_json(tmp_path):
    path = replace(DONE, status="failed", loss=math.nan, images_per_s=math.inf).write(tmp_path)
    read = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (read["loss"], read["images_per_s"]) == (None, None)


ROWS = [
    {"step": 4, "seconds": 10.0, "loss": 2.0},
    {"step": 5, "seconds": 12.0, "validation/top1": 0.5},
    {"step": 10, "seconds": 20.0, "validation/top1": 0.76},
    {"step": 15, "seconds": 30.0, "validation/top1": 0.74},
]


def test_the_first_evaluation_that_reaches_the_target_counts():
    target = Target(0.76)
    texts = [target.look(row["step"], row["seconds"], row["validation/top1"]) for row in ROWS[1:]]
    assert list(map(bool, texts)) == [False, True, False]
    assert (target.step, target.seconds, target.best) == (10, 20.0, 0.76)
    assert target.rows() == [("target", "76.00% reached at step 10, after 20.0 s")]


def test_a_later_attempt_continues_from_the_rows_of_earlier_ones():
    target = Target(0.7, ROWS)
    assert (target.step, target.seconds) == (10, 20.0)
    assert target.look(20, 40.0, 0.8) == ""
    assert target.step == 10
    without_times = Target(0.5, [{"step": 5, "validation/top1": 0.5}])
    assert (without_times.step, without_times.seconds) == (5, None)
