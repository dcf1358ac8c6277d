"""Matrices of layers over time."""

import numpy as np
import pytest

from largebatch.tools.report.layers import COLUMNS, drift, layer_map, network_order
from tests.tools.report import made_up


def test_layers_stand_from_input_to_head():
    paths = ["head/kernel", "stage10/a", "stage2/block10/a", "stage2/block9/a", "stem/conv"]
    assert network_order(paths) == [paths[4], paths[3], paths[2], paths[1], paths[0]]


def test_trust_ratios_of_weights():
    found = layer_map(made_up.layers(), "trust_ratio")
    assert found.names == ("stem/conv", "stage2/conv", "stage10/conv", "head")
    np.testing.assert_array_equal(found.samples, 500.0 * np.arange(1, 9))
    np.testing.assert_allclose(found.values[2], 0.05 * np.arange(1, 9), rtol=1e-12)
    assert (found.values[[0, 1, 3]] == 0.5).all()
    assert layer_map(made_up.layers(), "unheard_of") is None
    assert layer_map([{"step": 1}], "trust_ratio") is None


def test_drift_by_hand():
    # m = 0.5, 1.0, …, v = 2 always: |0.5 − 0| / √2 each time; ln 2 at first, then 0.
    mean, variance = drift(made_up.layers())
    assert mean.names == variance.names == ("stem/bn",)
    np.testing.assert_allclose(mean.values, np.full((1, 8), 0.5 / np.sqrt(2)), rtol=1e-12)
    np.testing.assert_allclose(variance.values, [[np.log(2)] + [0] * 7], atol=1e-12)


def test_older_logs_have_no_statistics():
    rows = made_up.layers()
    for row in rows:
        del row["layers"]["stem/bn"]
    assert drift(rows) is None


def test_layers_that_come_and_go_leave_gaps():
    rows = made_up.layers(10)
    del rows[0]["layers"]["head/kernel"]
    rows[1]["layers"]["stem/conv/kernel"] = {"trust_ratio": None}
    values = layer_map(rows, "trust_ratio").values
    assert np.isnan(values[3, 0])
    assert np.isnan(values[0, 1])
    assert np.isfinite(values).sum() == 6


def test_many_rows_are_thinned_with_both_ends():
    found = layer_map(made_up.layers(5 * 2_000), "trust_ratio")
    assert found.moments == 2_000
    assert found.values.shape == (4, COLUMNS)
    assert (found.samples[0], found.samples[-1]) == pytest.approx((500, 1_000_000))
