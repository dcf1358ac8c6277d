"""Which classes are taken for which, and how well each one is found."""

import dataclasses
from typing import NamedTuple

import numpy as np

from largebatch.weights.evaluation.outcomes import Outcomes


def confusion_matrix(outcomes: Outcomes, classes: int) -> np.ndarray:
    """int64 (classes, classes): images by label (row) and prediction (column).

    Images without probabilities are predicted as nothing and in no cell. 8 MB for 1,000 classes.
    """
    known = outcomes.predicted >= 0
    cells = outcomes.labels[known].astype(np.int64) * classes + outcomes.predicted[known]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


@dataclasses.dataclass(frozen=True, eq=False)
class PerClass:
    """Of each class; a share of nothing is NaN.

    Attributes:
        support: int64 (classes,), images of the class.
        predicted: int64 (classes,), images taken for it.
        recall: float64 (classes,), share of its images that are recognised: its top-1.
        recall5: float64 (classes,), its top-5.
        precision: float64 (classes,), share of the images taken for it that are of it.
        f1: float64 (classes,), harmonic mean of recall and precision, as 2·hits / (support +
            predicted).
    """

    support: np.ndarray
    predicted: np.ndarray
    recall: np.ndarray
    recall5: np.ndarray
    precision: np.ndarray
    f1: np.ndarray

    def worst(self, most: int) -> np.ndarray:
        """int64 (≤ most,): classes that have images, those of least recall first.

        Of equal recall, the larger first, then by label; classes without an error are left out.
        """
        candidates = np.flatnonzero((self.support > 0) & (self.recall < 1))
        order = np.lexsort((-self.support[candidates], self.recall[candidates]))
        return candidates[order][:most]


def per_class(matrix: np.ndarray, outcomes: Outcomes) -> PerClass:
    """Support, recall, precision and F1 of each class.

    Args:
        matrix: As of `confusion_matrix`.
        outcomes: Which made it.
    """
    classes = len(matrix)
    hits, predicted = np.diagonal(matrix), matrix.sum(axis=0)
    support = np.bincount(outcomes.labels, minlength=classes)
    hits5 = np.bincount(outcomes.labels[outcomes.kept.top5], minlength=classes)
    with np.errstate(invalid="ignore"):  # 0 / 0
        return PerClass(
            support,
            predicted,
            recall=hits / support,
            recall5=hits5 / support,
            precision=hits / predicted,
            f1=2 * hits / (support + predicted),
        )


class Pair(NamedTuple):
    """Images of one class that were taken for another."""

    label: int
    predicted: int
    images: int
    share: float
    """Of the label's images."""


def most_confused(matrix: np.ndarray, support: np.ndarray, most: int) -> list[Pair]:
    """The off-diagonal cells with most images; equal ones in order of label.

    Args:
        matrix: As of `confusion_matrix`.
        support: As of `PerClass`.
        most: At most so many.
    """
    off = matrix * (1 - np.eye(len(matrix), dtype=matrix.dtype))
    flat = off.ravel()
    count = min(most, np.count_nonzero(flat))
    order = np.argsort(-flat, kind="stable")[:count]
    return [
        Pair(label, predicted, int(off[label, predicted]), off[label, predicted] / support[label])
        for label, predicted in (divmod(int(cell), len(matrix)) for cell in order)
    ]


def shown(matrix: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns that are worth showing of a matrix of which few classes have images.

    Args:
        matrix: As of `confusion_matrix`.
        labels: int (n,), the classes of the data set, in its order.

    Returns:
        rows: `labels`.
        columns: `labels`, then all other classes that an image was taken for, ascending.
    """
    others = np.setdiff1d(np.flatnonzero(matrix.sum(axis=0)), labels)
    return labels, np.concatenate([labels, others])
