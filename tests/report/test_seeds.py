"""Intervals over seeds, differences of options, runs that belong together."""

import pytest

from largebatch.report.runs import load
from largebatch.report.seeds import differing, groups, interval
from tests.report import made_up


def test_the_interval_by_hand():
    # Of 1, 2, 3, 4: mean 2.5, s = √(5/3) = 1.290994, t(0.975, 3) = 3.182446 of every table,
    # so 3.182446 · 1.290994 / 2 = 2.054260.
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(2.054260, abs=1e-6)
    assert found.count == 4


def test_one_value_has_no_interval():
    assert interval([0.7]) == (0.7, None, 1)


def test_only_what_differs_in_the_order_of_the_schema(tmp_path):
    runs = load(
        [
            made_up.write(tmp_path / "a"),
            made_up.write(tmp_path / "b", seed=1, model__width=8, data__made_up="x"),
            made_up.write(tmp_path / "c", batch__workers=16),
        ]
    )
    assert differing(runs) == (
        ("model.width", (4, 8, 4), True),
        ("batch.workers", (8, 8, 16), True),
        ("run.seed", (0, 1, 0), True),
        ("data.made_up", (None, "x", None), None),
    )
    assert differing(runs[:1]) == ()


def test_an_option_that_a_version_lacked_is_at_its_default(tmp_path):
    runs = load(
        [
            made_up.write(tmp_path / "a", run__log_every="10 steps"),
            made_up.write(tmp_path / "b", batch__stages=[]),
            made_up.write(tmp_path / "c", run__log_every="5 steps"),
        ]
    )
    assert differing(runs) == (("run.log_every", ("10 steps", "10 steps", "5 steps"), False),)
    assert differing(runs[:2]) == ()


def test_a_run_without_a_configuration_differs_in_nothing(tmp_path):
    folders = [made_up.write(tmp_path / name) for name in "ab"]
    (folders[1] / "config.json").unlink()
    runs = load(folders)
    assert differing(runs) == ()
    assert groups(runs) == [[runs[0]], [runs[1]]]


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
