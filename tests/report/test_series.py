"""Columns, axes and thinning."""

import numpy as np
import pytest

from largebatch.report.runs import Rows
from largebatch.report.series import against, curve, place, thinned
from tests.report import made_up


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
    x, y = curve(Rows(made_up.rows()), "validation/top1", "epochs", 100)
    np.testing.assert_allclose(x, [1, 2, 3, 4], rtol=1e-15)
    assert np.isfinite(y).all()


def test_few_points_stay_as_they_are():
    x = np.arange(10.0)
    assert thinned(x, x, 10) == (x, x)


def test_thinning_keeps_peaks_dips_ends_and_gaps():
    x = np.arange(100_000.0)
    y = np.sin(x / 3e4)
    y[12_345], y[77_777], y[50_000] = 100.0, -100.0, np.nan
    few, less = thinned(x, y, 1_000)
    assert len(few) <= 1_502
    assert (np.diff(few) > 0).all()
    assert (few[0], few[-1]) == (0, 99_999)
    assert 100.0 in less
    assert -100.0 in less
    assert np.isnan(less[few == 50_000]).all()
    assert np.isnan(less).sum() == 1
    # What is left is drawn through points of the curve itself.
    np.testing.assert_array_equal(less, y[few.astype(int)])


def test_a_stretch_without_numbers_is_thinned_too():
    x = np.arange(1_000.0)
    few, less = thinned(x, np.full(1_000, np.nan), 10)
    assert len(few) <= 17
    assert np.isnan(less).all()


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
