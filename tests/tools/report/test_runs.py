"""Reading runs: growing, rolled back, damaged; their curves and maps of layers."""

import dataclasses

import numpy as np
import pytest

from largebatch.errors import DataError
from largebatch.tools.report import charts, summary
from largebatch.tools.report.charts import COLUMNS, drift, of_layers, weights
from largebatch.tools.report.runs import (
    Rows,
    attempts_of,
    current,
    load,
    marks,
    place,
    thinned,
)
from tests.tools.report import made_up


def test_no_run(tmp_path):
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        load([tmp_path])
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(DataError, match="no trial"):
        load([tmp_path])
    with pytest.raises(DataError, match="absent"):
        load([tmp_path / "absent"])
    folder = made_up.write(tmp_path / "one")
    with pytest.raises(DataError, match="twice"):
        load([folder, folder / ".." / "one"])


def test_rows_that_were_gone_back_over_are_replaced():
    found = [{"step": s, "n": n} for n, s in enumerate((10, 20, 30, 20, 30, 30))]
    found += [{"step": 30, "more": 1}]
    assert current(found) == (
        {"step": 10, "n": 0},
        {"step": 20, "n": 3},
        {"step": 30, "n": 5, "more": 1},
    )


@pytest.mark.parametrize(
    ("file", "content", "column", "left"),
    [
        ("config.json", '{"config": {"run": 3}}', "config", {}),
        ("summary.json", '{"steps": "x"}', "summary", {}),
        ("layers.jsonl", '{"step": 1}\n\0\0\0\n{"step": 2}\n', "layers", ()),
    ],
)
def test_a_damaged_file_is_a_remark(tmp_path, file, content, column, left):
    folder = made_up.write(tmp_path / "one")
    (folder / file).write_text(content)
    (run,) = load([folder])
    (remark,) = run.remarks
    assert file in remark
    assert getattr(run, column) == left
    assert (run.step, summary.headline(run)[0].value) == (40, "85.47 %")


def test_two_attempts_and_the_last_times_of_each(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    (first, _), (second, _) = attempts_of(run.events)
    assert (first["time"], first["devices"]) == (made_up.BEGAN, 2)
    assert (second["step"], second["devices"]) == (13, 1)
    bars = charts.of_time(run)
    parts = ("compile", "data wait", "step", "evaluation", "checkpoint", "other")
    # 6 s of training, of which 2 were waits; then 7 and 0.5.
    assert bars.rows[0][1] == dict(zip(parts, (3.0, 2.0, 4.0, 1.0, 0.5, 2.0), strict=True))
    assert bars.rows[1][1] == dict(zip(parts, (1.0, 0.5, 6.5, 1.0, 0.5, 0.0), strict=True))


def test_events(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    found = {mark.kind: mark for mark in marks(run.events)}
    steps = {"start": 0, "evaluation": 10, "checkpoint": 10, "slow host": 12, "preempted": 13}
    steps |= {"restart": 13, "skipped": 15, "rollback": 16}
    assert {kind: mark.step for kind, mark in found.items()} == steps
    assert "process 1 on b" in found["slow host"].text


def test_thinning_keeps_peaks_dips_ends_and_gaps():
    np.testing.assert_array_equal(thinned(np.arange(10.0), 10), np.arange(10))
    assert len(thinned(np.full(1_000, np.nan), 10)) <= 17
    y = np.sin(np.arange(100_000.0) / 3e4)
    y[12_345], y[77_777], y[50_000] = 100.0, -100.0, np.nan
    few = thinned(y, 1_000)
    assert len(few) <= 1_502
    assert (np.diff(few) > 0).all()
    assert {0, 12_345, 50_000, 77_777, 99_999} <= {*few.tolist()}
    assert np.isnan(y[few]).sum() == 1


def test_events_stand_between_rows():
    found = place(Rows(made_up.rows()), [0, 250, 9_000])
    np.testing.assert_array_equal(found["samples"], [0, 250, 9_000])
    np.testing.assert_allclose(found["epochs"], [0, 0.25, 9.0], rtol=1e-12)
    np.testing.assert_allclose(found["time"], [5.5, 6.25, 25.0], rtol=1e-12)
    empty = place(Rows(), [100])
    assert np.isnan(empty["time"]).all()
    np.testing.assert_array_equal(empty["samples"], [100])


def test_trust_ratios_of_weights():
    rows = made_up.layers()
    names, values = weights(rows, "trust_ratio")
    paths = ["stem/conv", "stage2/conv", "stage10/conv", "head"]
    assert names == [f"{path}/kernel" for path in paths]
    np.testing.assert_allclose(values[2], 0.05 * np.arange(1, 9), rtol=1e-12)
    assert (values[[0, 1, 3]] == 0.5).all()
    assert weights(rows, "unheard_of")[0] == []
    # Layers that come and go leave gaps.
    del rows[0]["layers"]["head/kernel"]
    rows[1]["layers"]["stem/conv/kernel"] = {"trust_ratio": None}
    _, values = weights(rows, "trust_ratio")
    assert np.argwhere(np.isnan(values)).tolist() == [[0, 1], [3, 0]]


def test_drift_by_hand():
    # m = 0.5, 1.0, …, v = 2 always: |0.5 − 0| / √2 each time; ln 2 at first, then 0.
    names, mean, variance = drift(made_up.layers())
    assert names == ["stem/bn"]
    np.testing.assert_allclose(mean, np.full((1, 8), 0.5 / np.sqrt(2)), rtol=1e-12)
    np.testing.assert_allclose(variance, [[np.log(2)] + [0] * 7], atol=1e-12)


def test_many_rows_are_thinned_with_both_ends(tmp_path):
    (run,) = load([made_up.write(tmp_path / "one")])
    long = dataclasses.replace(run, layers=Rows(made_up.layers(5 * 2_000)))
    found = {each.key: each for each in of_layers(long)}
    keys = ["trust_ratio", "weight_norm", "gradient_norm", "bn_mean", "bn_variance"]
    assert list(found) == keys
    assert found["trust_ratio"].values.shape == (4, COLUMNS)
    assert f"{COLUMNS} of 2000 rows" in found["trust_ratio"].caption
    assert found["trust_ratio"].x[[0, -1]] == pytest.approx((0.5, 1_000))
