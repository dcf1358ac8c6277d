"""Figures as the page's script gets them."""

import base64

import numpy as np

from largebatch.tools.report.charts import HeatMap, Line, numbers


def test_numbers_are_short_and_json():
    assert numbers([1 / 3, np.nan, np.inf, 1e15, 123456.789]) == [
        0.333333,
        None,
        None,
        1e15,
        123457.0,
    ]


def test_an_axis_without_positions_is_left_out():
    x = {"epochs": np.array([np.nan]), "samples": np.array([2.0])}
    found = Line("a", 0, x, np.array([np.nan])).as_json()
    assert (found["x"], found["y"], found["band"]) == ({"samples": [2.0]}, [None], None)


def test_values_of_a_map_are_found_again():
    values = np.array([[1e-6, 0.5, np.nan], [0.0, 3e4, 2.0]])
    made = HeatMap("k", "t", "c", ("a", "b"), np.arange(1.0, 4.0), "epochs", values).as_json()
    codes = np.frombuffer(base64.b64decode(made["codes"]), "<u2").reshape(2, 3)
    assert (codes[0, 2], codes[1, 0]) == (0, 1)  # unknown; zero has no logarithm
    again = made["least"] * np.exp(made["ratio"] * (codes - 2.0) / 65_533)
    known = codes > 1
    np.testing.assert_allclose(again[known], values[known], rtol=3e-4)
    assert made["least"] <= made["low"] < made["high"] <= 3e4


def test_a_map_of_one_value_has_a_scale():
    made = HeatMap("k", "t", "c", ("a",), np.array([1.0]), "epochs", np.array([[2.0]]))
    assert made.scale == (1.0, 4.0)
    assert made.as_json()["ratio"] == 1.0
