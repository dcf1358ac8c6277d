"""Columns, axes and thinning."""

import numpy as np
import pytest

from largebatch.tools.report.runs import Rows
from largebatch.tools.report.series import against, curve, place, pooled, thinned
from tests.tools.report import made_up


def test_columns_have_gaps_where_rows_have():
    found = Rows([{"a": 1}, {"a": None}, {}, {"a": "x"}, {"a": 2.5}]).column("a")
    np.testing.assert_array_equal(found, [1, np.nan, np.nan, np.nan, 2.5])


def test_time_without_seconds_is_what_steps_took():
    rows = [{"samples": 100, "images_per_s": 50.0}, {"samples": 400, "images_per_s": 100.0}]
    np.testing.assert_array_equal(against(Rows(rows), "time"), [2.0, 5.0])
    rows[1]["images_per_s"] = 0.0  # a row that says nothing adds nothing
    np.testing.assert_array_equal(against(Rows(rows), "time"), [2.0, 2.0])
    np.testing.assert_array_equal(against(Rows([{"seconds": 7.0}]), "time"), [7.0])


def test_only_rows_of_an_evaluation_make_its_curve():
    x, y = curve(Rows(made_up.rows()), "validation/top1", 100)
    np.testing.assert_allclose(x["epochs"], [1, 2, 3, 4], rtol=1e-15)
    np.testing.assert_allclose(x["samples"], [1000, 2000, 3000, 4000], rtol=1e-15)
    np.testing.assert_allclose(x["time"], [10, 15, 20, 25], rtol=1e-15)
    assert np.isfinite(y).all()


def test_few_points_stay_as_they_are():
    np.testing.assert_array_equal(thinned(np.arange(10.0), 10), np.arange(10))


def test_thinning_keeps_peaks_dips_ends_and_gaps():
    y = np.sin(np.arange(100_000.0) / 3e4)
    y[12_345], y[77_777], y[50_000] = 100.0, -100.0, np.nan
    few = thinned(y, 1_000)
    assert len(few) <= 1_502
    assert (np.diff(few) > 0).all()
    assert {0, 12_345, 50_000, 77_777, 99_999} <= {*few.tolist()}
    assert np.isnan(y[few]).sum() == 1


def test_a_stretch_without_numbers_is_thinned_too():
    assert len(thinned(np.full(1_000, np.nan), 10)) <= 17


def test_rows_of_half_a_second_are_pooled():
    # Rows of 0.1 s: intervals of 0.5 s hold 5 rows, with the values 0 to 4.
    rows = Rows([{"seconds": 0.1 * n, "samples": n, "rate": float(n % 5)} for n in range(100)])
    found = pooled(rows, "rate")
    assert len(found.median) == 20
    np.testing.assert_allclose(found.median[5:], 2.0, atol=0.6)
    assert ((found.low <= found.median) & (found.median <= found.high)).all()
    np.testing.assert_allclose(found.high[0], np.quantile(np.arange(5), 0.9), rtol=1e-12)
    assert found.x["samples"][0] == 4
    assert (np.diff(found.x["time"]) > 0).all()
    assert np.isnan(found.x["epochs"]).all()


def test_slow_rows_are_not_pooled_and_long_runs_have_few_intervals():
    rows = Rows([{"seconds": 2.0 * n, "rate": 10.0 * n} for n in range(5)] + [{"rate": 3.0}])
    np.testing.assert_array_equal(pooled(rows, "rate").median, [0, 10, 20, 30, 40])
    long = Rows([{"seconds": float(n), "rate": 1.0} for n in range(10_000)])
    assert 250 <= len(pooled(long, "rate").median) <= 301
    assert pooled(Rows([{"seconds": 1.0}]), "rate").median.size == 0


@pytest.mark.parametrize(
    ("axis", "expected"),
    [("samples", [0, 250, 9_000]), ("epochs", [0, 0.25, 9.0]), ("time", [5.5, 6.25, 25.0])],
)
def test_events_stand_between_rows(axis, expected):
    found = place(Rows(made_up.rows()), [0, 250, 9_000], axis)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_rows_nothing_has_a_place():
    assert np.isnan(place(Rows(), [100], "time")).all()
    np.testing.assert_array_equal(place(Rows(), [100], "samples"), [100])
