"""The confusion matrix and the figures of each class against scikit-learn's."""

import numpy as np
from sklearn.metrics import confusion_matrix as theirs
from sklearn.metrics import precision_recall_fscore_support

from largebatch.weights.evaluation.confusion import (
    confusion_matrix,
    most_confused,
    per_class,
    shown,
)
from largebatch.weights.evaluation.outcomes import figures
from tests.weights.evaluation.cases import logits_and_labels, outcomes_of


def test_all_is_scikit_learns():
    outcomes = outcomes_of(*logits_and_labels())
    matrix = confusion_matrix(outcomes, 7)
    labels, predicted = outcomes.labels, outcomes.predicted
    np.testing.assert_array_equal(matrix, theirs(labels, predicted, labels=np.arange(7)))
    found = per_class(matrix, outcomes)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=np.arange(7), zero_division=np.nan
    )
    assert np.isnan(precision[0])  # the case has a class that is never predicted
    assert np.isnan(recall[6])  # and one that is absent
    np.testing.assert_array_equal(found.support, support)
    np.testing.assert_array_equal(found.precision, precision)
    np.testing.assert_array_equal(found.recall, recall)
    np.testing.assert_allclose(found.f1, f1, rtol=1e-15)
    of_one = labels == 1
    assert found.recall5[1] == outcomes.kept.top5[of_one].mean()


def test_the_worst_classes_and_the_most_confused_pairs():
    outcomes = outcomes_of(*logits_and_labels())
    matrix = confusion_matrix(outcomes, 7)
    found = per_class(matrix, outcomes)
    worst = found.worst(3)
    assert worst[0] == 0  # never predicted
    assert 6 not in found.worst(99)  # absent
    assert (np.diff(found.recall[found.worst(99)]) >= 0).all()
    pairs = most_confused(matrix, found.support, 4)
    cells = sorted((matrix * (1 - np.eye(7, dtype=int))).ravel().tolist(), reverse=True)
    assert [pair.images for pair in pairs] == cells[:4]
    for pair in pairs:
        assert pair.images == matrix[pair.label, pair.predicted]
        assert pair.share == pair.images / found.support[pair.label]
    assert most_confused(np.diag([3, 4]), np.array([3, 4]), 5) == []
    labels = np.array([0, 1, 1], np.int32)
    right = outcomes_of(np.eye(2, dtype=np.float32)[labels], labels)
    assert per_class(confusion_matrix(right, 2), right).worst(5).size == 0


def test_images_without_probabilities_are_wrong_everywhere():
    logits, labels = logits_and_labels()
    clean = outcomes_of(logits, labels)
    # Its own label, which top_k puts first; another class alone; an infinity.
    hits = np.flatnonzero(clean.kept.top1)[:3]
    logits[hits[0]] = np.nan
    logits[hits[1], (labels[hits[1]] + 1) % 7] = np.nan
    logits[hits[2], labels[hits[2]]] = np.inf
    labels = labels.copy()
    labels[hits[0]] = 0
    found = outcomes_of(logits, labels)
    split = figures(found)
    assert split.not_finite == 3
    matrix = confusion_matrix(found, 7)
    each = per_class(matrix, found)
    assert matrix.sum() == 397
    assert np.trace(matrix) == split.top1.count == np.count_nonzero(clean.kept.top1) - 3
    np.testing.assert_array_equal(each.support, np.bincount(labels, minlength=7))
    of_all = np.nansum(each.recall * each.support), np.nansum(each.recall5 * each.support)
    # Shares times counts, in float64.
    np.testing.assert_allclose(of_all, (split.top1.count, split.top5.count), rtol=1e-12)
    assert (found.kept.top[hits] == -1).all()
    assert np.isnan(found.kept.probabilities[hits]).all()


def test_columns_of_a_set_of_few_classes():
    matrix = np.zeros((6, 6), int)
    matrix[4, 4], matrix[1, 4], matrix[1, 5], matrix[4, 0] = 3, 1, 1, 2
    rows, columns = shown(matrix, np.array([4, 1]))
    assert rows.tolist() == [4, 1]
    assert columns.tolist() == [4, 1, 0, 5]
    assert matrix[np.ix_(rows, columns)].sum() == matrix.sum()
