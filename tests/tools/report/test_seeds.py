"""Intervals over seeds, and runs that differ in nothing else."""

import numpy as np
import pytest

from largebatch.tools.report import curves
from largebatch.tools.report import summary as facts
from largebatch.tools.report.runs import load
from largebatch.tools.report.seeds import groups, interval
from tests.tools.report import made_up


def test_the_interval_by_hand():
    # Of 1, 2, 3, 4: mean 2.5, s = √(5/3) = 1.290994, t(0.975, 3) = 3.182446 of every table,
    # so 3.182446 · 1.290994 / 2 = 2.054260.
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(2.054260, abs=1e-6)
    assert found.count == 4


def test_one_value_has_no_interval():
    assert interval([0.7]) == (0.7, None, 1)


def test_groups_differ_in_the_seed_only_and_count_each_once(tmp_path):
    runs = load(
        [
            made_up.write(tmp_path / "a0"),
            made_up.write(tmp_path / "b0", model__width=8),
            made_up.write(tmp_path / "a1", seed=1),
            made_up.write(tmp_path / "a0again"),
            made_up.write(tmp_path / "a2", seed=2),
        ]
    )
    assert [[run.name for run in group] for group in groups(runs)] == [
        ["a0", "a1", "a2"],
        ["b0"],
        ["a0again"],
    ]


def test_only_complete_runs_enter_the_mean(tmp_path):
    for seed in range(4):
        made_up.write(tmp_path / f"s{seed}", seed=seed)
    failed = made_up.SUMMARY | {"status": "failed"}
    made_up.write(tmp_path / "s4", seed=4, summary=failed)
    # Killed at step 10, whose accuracy is far below the others'.
    made_up.write(tmp_path / "s5", seed=5, metrics=made_up.rows(10), summary={})
    # Without any evaluation in its log, and none of the loss in its summary.
    unknown = made_up.SUMMARY | {"loss": None, "top1": made_up.rows()[-1]["validation/top1"]}
    made_up.write(tmp_path / "s6", seed=6, metrics=[], summary=unknown)
    found = groups(load(sorted(tmp_path.iterdir())))
    _, ((names, seeds, top1, loss, time),) = facts.over_seeds(found)
    assert names == "s0, s1, s2, s3, s4, s5, s6"
    assert (seeds, top1) == ("5 of 7", "85.47 ± 0.00 %")
    # 0.3707 and up by 0.01: mean 0.3857, t(0.975, 3) · 0.01 · √(5/3) / 2 = 3.1824 · 0.0064550.
    assert loss == "0.3857 ± 0.0205 (4 of 5)"
    assert time == "25.0 ± 0.0 s"
    # The curve has the evaluations of the complete ones that logged any.
    drawn = curves.over_seeds(groups(load([tmp_path / f"s{seed}" for seed in (0, 1, 4, 5)])))
    (line,) = drawn.panels[0].lines
    assert line.label == "s0 and 1 more, 2 of 4 seeds"
    np.testing.assert_array_equal(line.x["samples"], [1000, 2000, 3000, 4000])
    assert (line.band[0] <= line.y).all()
    assert curves.over_seeds(groups(load([tmp_path / f"s{seed}" for seed in (0, 4, 5)]))) is None


def test_of_one_seed_the_run_that_is_complete_counts(tmp_path):
    made_up.write(tmp_path / "a", summary={}, metrics=made_up.rows(10))
    for name, seed in (("b", 0), ("c", 1)):
        made_up.write(tmp_path / name, seed=seed)
    found = groups(load(sorted(tmp_path.iterdir())))
    assert [[run.name for run in group] for group in found] == [["a"], ["b", "c"]]
