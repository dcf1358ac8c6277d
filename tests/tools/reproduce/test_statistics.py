"""Means of several runs, by hand."""

import math

import pytest

from largebatch.tools.reproduce.statistics import estimate, olympic_mean


def test_interval_of_five_runs():
    """The five final accuracies of Fujitsu's v0.6 submission; t of 4 degrees is 2.776 (tables)."""
    found = estimate([75.98, 75.93, 75.95, 75.94, 76.11])
    assert (found.mean, found.runs) == (pytest.approx(75.982), 5)
    deviations = (-0.002, -0.052, -0.032, -0.042, 0.128)
    half = 2.776 * math.sqrt(sum(d * d for d in deviations) / 4) / math.sqrt(5)
    # Three decimals of t in the table.
    assert found.high - found.mean == pytest.approx(half, rel=2e-4)
    assert found.mean - found.low == pytest.approx(half, rel=2e-4)


def test_one_run_has_no_interval():
    assert (estimate([3.0]).mean, estimate([3.0]).low, estimate([3.0]).high) == (3.0, None, None)


def test_time_without_best_and_worst():
    """Of five, the middle three; of fewer, all."""
    assert olympic_mean([70.39, 70.45, 70.40, 70.42, 70.41]) == pytest.approx(70.41)
    assert olympic_mean([1.0, 2.0, 3.0, 6.0]) == 3.0


@pytest.mark.parametrize(
    ("times", "mean"),
    [
        ([None, 2.0, 3.0, 4.0, 9.0], (3.0 + 4.0 + 9.0) / 3),  # counts as the slowest
        ([None, None, 3.0, 4.0, 9.0], None),
        ([None, 3.0], None),
    ],
)
def test_runs_that_did_not_reach_the_target(times, mean):
    assert olympic_mean(times) == mean
