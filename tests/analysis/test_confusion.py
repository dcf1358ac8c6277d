"""The confusion matrix and the figures of each class against scikit-learn's."""

import numpy as np
from sklearn.metrics import confusion_matrix as theirs
from sklearn.metrics import precision_recall_fscore_support

from largebatch.analysis.confusion import confusion_matrix, most_confused, per_class, shown
from tests.analysis.cases import logits_and_labels, outcomes_of


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
    pairs = most_confused(matrix, 4)
    cells = sorted((matrix * (1 - np.eye(7, dtype=int))).ravel().tolist(), reverse=True)
    assert [pair.images for pair in pairs] == cells[:4]
    for pair in pairs:
        assert pair.images == matrix[pair.label, pair.predicted]
        assert pair.share == pair.images / found.support[pair.label]
    assert most_confused(np.diag([3, 4]), 5) == []
    assert per_class(np.diag([3, 4]), outcomes_of(*logits_and_labels(classes=2))).worst(5).size == 0


def test_columns_of_a_set_of_few_classes():
    matrix = np.zeros((6, 6), int)
    matrix[4, 4], matrix[1, 4], matrix[1, 5], matrix[4, 0] = 3, 1, 1, 2
    rows, columns = shown(matrix, np.array([4, 1]))
    assert rows.tolist() == [4, 1]
    assert columns.tolist() == [4, 1, 0, 5]
    assert matrix[np.ix_(rows, columns)].sum() == matrix.sum()
