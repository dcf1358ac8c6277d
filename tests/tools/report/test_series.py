"""Columns, axes and thinning."""

import numpy as np

from largebatch.tools.report.series import Rows, curve, place, thinned
from tests.tools.report import made_up


def test_columns_have_gaps_where_rows_have():
    rows = Rows([{"a": 1}, {"a": 2.5}, {"a": None}, {}])
    np.testing.assert_array_equal(rows.column("a"), [1, 2.5, np.nan, np.nan])
    assert (rows.last("a"), rows.last("b")) == (2.5, None)


def test_only_rows_of_an_evaluation_make_its_curve():
    x, y = curve(Rows(made_up.rows()), "validation/top1", 100)
    np.testing.assert_allclose(x["epochs"], [1, 2, 3, 4], rtol=1e-15)
    np.testing.assert_allclose(x["samples"], [1000, 2000, 3000, 4000], rtol=1e-15)
    np.testing.assert_allclose(x["time"], [10, 15, 20, 25], rtol=1e-15)
    assert np.isfinite(y).all()


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
