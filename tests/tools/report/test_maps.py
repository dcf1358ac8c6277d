"""Heat maps of layers over time."""

import dataclasses

import numpy as np
import pytest

from largebatch.tools.report.figures import HeatMap, as_json
from largebatch.tools.report.maps import COLUMNS, drift, network_order, of_layers, weights
from largebatch.tools.report.runs import load
from largebatch.tools.report.series import Rows
from tests.tools.report import made_up


def test_layers_stand_from_input_to_head():
    paths = ["head/kernel", "stage10/a", "stage2/block10/a", "stage2/block9/a", "stem/conv"]
    assert network_order(paths) == [paths[4], paths[3], paths[2], paths[1], paths[0]]


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


def test_a_map_has_a_scale_and_keeps_zero_and_gaps():
    values = np.array([[2.0, np.nan, 0.0]])
    made = HeatMap("k", "t", "c", ("a",), np.arange(1.0, 4.0), "epochs", values)
    assert made.scale == (1.0, 4.0)
    found = as_json(made)
    assert (found["values"], found["x"]) == ([[2.0, None, 0.0]], [1.0, 2.0, 3.0])
