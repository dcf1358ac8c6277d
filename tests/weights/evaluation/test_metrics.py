"""Metrics against their definitions and scikit-learn's metrics of the logits."""

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from largebatch.models.loss import classification_sums
from largebatch.weights.evaluation.metrics import calibration_errors
from tests.weights.evaluation.cases import evaluation, logits_and_labels, outputs_of


def test_the_outputs_of_an_image_are_those_of_sorting_its_logits():
    logits, labels = logits_and_labels()
    logits[3, 2] = logits[3, 4] = logits[3].max() + 1  # a tie: the smaller label first, as argmax
    found = jax.device_get(outputs_of(logits, labels))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.top, order)
    probabilities = softmax(logits.astype(np.float64), axis=1)
    # float32: 1e-6 relative is eight units in the last place.
    expected = np.take_along_axis(probabilities, order, axis=1)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-6)
    of_label = probabilities[np.arange(400), labels]
    np.testing.assert_allclose(found.label_probability, of_label, rtol=1e-6)
    np.testing.assert_array_equal(found.top1, order[:, 0] == labels)
    np.testing.assert_array_equal(found.top5, (order == labels[:, None]).any(axis=1))
    np.testing.assert_array_equal(found.smoothed_loss, found.loss)
    few = jax.device_get(outputs_of(*logits_and_labels(classes=3)))
    assert few.top.shape == few.probabilities.shape == (400, 3)
    assert few.top5.all()


def test_the_summary_is_scikit_learns():
    logits, labels = logits_and_labels()
    probabilities = softmax(logits.astype(np.float64), axis=1)
    found = evaluation(logits, labels, smoothing=0.1).summary
    classes = np.arange(7)
    assert found["loss"] == pytest.approx(log_loss(labels, probabilities, labels=classes), rel=1e-6)
    brier = brier_score_loss(labels, probabilities, labels=classes, scale_by_half=False)
    assert found["brier"] == pytest.approx(brier, rel=1e-6)
    sums = classification_sums(logits, labels, np.ones(len(labels)), 0.1)
    for k, name in ((1, "top1"), (5, "top5")):
        count = top_k_accuracy_score(labels, logits, k=k, labels=classes, normalize=False)
        assert found[f"{name}_count"] == count == getattr(sums, name)
        assert found[name] == count / 400
    assert found["smoothed_loss"] == pytest.approx(float(sums.loss) / 400, rel=1e-6)
    assert found["mean_confidence"] == pytest.approx(probabilities.max(axis=1).mean(), rel=1e-6)
    assert (found["not_finite"], found["images"]) == (0, 400)
    assert found["unreadable"] == [{"name": "file 3", "reason": "cut short"}]


def test_the_worst_classes_and_the_most_confused_pairs():
    found = evaluation(*logits_and_labels())
    worst = found.per_class.worst(99)
    assert worst[0] == 0  # never predicted
    assert 6 not in worst  # no images
    assert (np.diff(found.per_class.recall[worst]) >= 0).all()
    pairs = found.most_confused(4)
    off = found.matrix * (1 - np.eye(7, dtype=int))
    assert [images for _, _, images in pairs] == sorted(off.ravel().tolist(), reverse=True)[:4]
    for label, predicted, images in pairs:
        assert images == found.matrix[label, predicted]
    labels = np.tile(np.array([0, 1, 1, 1], np.int32), 10)
    right = evaluation(np.eye(2, dtype=np.float32)[labels], labels)
    assert right.per_class.worst(5).size == 0
    assert right.most_confused(5) == []


def test_images_without_finite_logits_are_wrong_everywhere():
    logits, labels = logits_and_labels()
    clean = evaluation(logits, labels)
    hits = np.flatnonzero(clean.outputs.top1)[:3]
    # Its own label, which top_k puts first; another class alone; an infinity.
    logits, labels = logits.copy(), labels.copy()
    labels[hits[0]], logits[hits[0]] = 0, np.nan
    logits[hits[1], (labels[hits[1]] + 1) % 7] = np.nan
    logits[hits[2], labels[hits[2]]] = np.inf
    found = evaluation(logits, labels)
    assert found.summary["not_finite"] == 3
    assert found.matrix.sum() == 397
    assert np.trace(found.matrix) == found.summary["top1_count"] == clean.summary["top1_count"] - 3
    np.testing.assert_array_equal(found.per_class.support, np.bincount(labels, minlength=7))
    assert (found.outputs.top[hits] == -1).all()
    assert np.isnan(found.outputs.probabilities[hits]).all()


def test_a_calibration_error_by_hand():
    # Bins of a fifth: (0.2, 0.4] has 0.3 wrong and 0.4 right, (0.8, 1] has 0.9 right, 1.0 right,
    # and 0.85 wrong. Gaps: |1/2 − 0.35| = 0.15 of two; |2/3 − 2.75/3| = 0.25 of three.
    confidence = np.array([0.3, 0.9, 0.4, 1.0, np.nan, 0.85])
    correct = np.array([False, True, True, True, False, False])
    expected, greatest = calibration_errors(confidence, correct, bins=5)
    assert expected == pytest.approx((2 * 0.15 + 3 * 0.25) / 5, abs=1e-15)
    assert greatest == pytest.approx(0.25, abs=1e-15)
    # Halves: 0.3 wrong, 0.4 right, 0.85 wrong (the median) | both right.
    halves, _ = calibration_errors(confidence, correct, quantiles=True, bins=2)
    gaps = abs(1 / 3 - 1.55 / 3), abs(1 - 0.95)
    assert halves == pytest.approx((3 * gaps[0] + 2 * gaps[1]) / 5, abs=1e-15)
    assert np.isnan(calibration_errors(np.full(3, np.nan), np.zeros(3, bool))).all()
