"""Calibration errors against sums by hand and a loop over the definition."""

import numpy as np
import pytest

from largebatch.weights.evaluation.calibration import equal_mass, equal_width
from tests.weights.evaluation.cases import logits_and_labels, outcomes_of


def test_an_error_computed_by_hand():
    # Bins of a fifth: (0.2, 0.4] has 0.3 wrong and 0.4 right, (0.8, 1] has 0.9 right, 1.0 right,
    # and 0.85 wrong. Gaps: |1/2 − 0.35| = 0.15 of two; |2/3 − 2.75/3| = 0.25 of three.
    confidence = np.array([0.3, 0.9, 0.4, 1.0, 0.85])
    right = np.array([False, True, True, True, False])
    found = equal_width(confidence, right, bins=5)
    assert found.counts.tolist() == [0, 2, 0, 0, 3]
    assert found.expected_error == pytest.approx((2 * 0.15 + 3 * 0.25) / 5, abs=1e-15)
    assert found.greatest_error == pytest.approx(0.25, abs=1e-15)
    assert found.accuracy[[1, 4]] == pytest.approx([1 / 2, 2 / 3])
    assert np.isnan(found.accuracy[[0, 2, 3]]).all()
    # Two bins of equally many, the first of three: 0.3 wrong, 0.4 right, 0.85 wrong | both right.
    adaptive = equal_mass(confidence, right, bins=2)
    assert adaptive.counts.tolist() == [3, 2]
    assert adaptive.edges.tolist() == [0, 0.875, 1]
    gaps = abs(1 / 3 - 1.55 / 3), abs(1 - 0.95)
    assert adaptive.expected_error == pytest.approx((3 * gaps[0] + 2 * gaps[1]) / 5, abs=1e-15)


def test_the_definition_in_a_loop():
    logits, labels = logits_and_labels()
    outcomes = outcomes_of(logits, labels)
    confidence, right = outcomes.confidence, outcomes.kept.top1
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean(dtype=np.float64))
            total += inside.sum() / 400 * gap
    # Both sum in float64; 1e-12 is the order of the sums.
    assert equal_width(confidence, right).expected_error == pytest.approx(total, abs=1e-12)
    adaptive = equal_mass(confidence, right)
    assert adaptive.counts.sum() == 400
    assert np.ptp(adaptive.counts) <= 1
    assert (np.diff(adaptive.edges) >= 0).all()


def test_images_without_a_confidence_are_left_out():
    confidence = np.array([np.nan, 0.5, 0.5])
    right = np.array([False, True, False])
    for made in (equal_width, equal_mass):
        found = made(confidence, right)
        assert found.counts.sum() == 2
    assert equal_width(confidence, right).expected_error == 0


def test_fewer_images_than_bins():
    found = equal_mass(np.array([0.25, 0.75]), np.array([True, True]))
    assert found.counts.tolist() == [1, 1]
    assert found.expected_error == pytest.approx(0.5)
