"""The metrics of an evaluation: accuracy, loss, calibration, confusions and each class.

Precision, recall, F1, the confusion matrix and calibration are scikit-learn's. Images
whose logits are not finite have no predicted class and count as wrong.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from largebatch.data import Unreadable
from largebatch.weights.evaluation.classes import Matching
from largebatch.weights.evaluation.inference import Outputs

BINS = 15
"""Bins of confidence, as in Guo et al. 2017."""


def calibration_errors(
    confidence: np.ndarray, correct: np.ndarray, *, quantiles: bool = False, bins: int = BINS
) -> tuple[float, float]:
    """Return the mean and the greatest |accuracy − confidence| over bins of confidence.

    The mean is weighted by images: ECE and MCE of Guo et al. 2017 (arXiv 1706.04599), equations 3
    and 5.

    Args:
        confidence: float (images,) in [0, 1]; images with NaN are left out.
        correct: bool (images,).
        quantiles: Whether bins hold about the same number of images (Nguyen and O'Connor 2015,
            arXiv 1508.05154) instead of having the same width.
        bins: Number of bins.
    """
    from sklearn.calibration import calibration_curve

    known = np.isfinite(confidence)
    # A sum of float32 probabilities may round to above 1.
    confidence, correct = np.minimum(confidence[known].astype(np.float64), 1), correct[known]
    if not len(confidence):
        return math.nan, math.nan
    edges = np.linspace(0.0, 1.0, bins + 1)
    if quantiles:
        edges = np.percentile(confidence, 100 * edges)
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=bins)
    accuracy, mean = calibration_curve(
        correct, confidence, n_bins=bins, strategy="quantile" if quantiles else "uniform"
    )
    gaps = np.abs(accuracy - mean)  # of the bins that have images
    return float(np.average(gaps, weights=counts[counts > 0])), float(np.max(gaps))


def wilson_interval(count: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction (Wilson 1927)."""
    from scipy.stats import binomtest  # half a second of import

    found = binomtest(count, images).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


class PerClass(NamedTuple):
    """Metrics of each class, (classes,) each; a fraction of no images is NaN."""

    support: np.ndarray
    """int64, images of the class."""
    predicted: np.ndarray
    """int64, images predicted as the class."""
    recall: np.ndarray
    """float64, fraction of its images predicted as it: top-1."""
    top5_recall: np.ndarray
    """float64, its top-5."""
    precision: np.ndarray
    """float64, fraction of the images predicted as it that are of it."""
    f1: np.ndarray
    """float64, 2·hits / (support + predicted)."""

    def worst(self, most: int) -> np.ndarray:
        """Return the classes of least recall, int64 (≤ most,); those without errors are left out.

        Of equal recall, the class with more images comes first.
        """
        candidates = np.flatnonzero((self.support > 0) & (self.recall < 1))
        order = np.lexsort((-self.support[candidates], self.recall[candidates]))
        return candidates[order][:most]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation of some weights on a split, and its metrics.

    Attributes:
        weights: Where the weights are from.
        data: What was evaluated, in words.
        split: Its name.
        matching: Relation between the network's classes and the data's.
        outputs: Of all images, by id.
        unreadable: Images that were evaluated as grey.
        preprocessing: How the images were prepared, from `options.preprocessing`.
        label_smoothing: Of the smoothed loss.
        seconds: From the first image to the last, compilation included.
    """

    weights: str
    data: str
    split: str
    matching: Matching
    outputs: Outputs
    unreadable: Unreadable
    preprocessing: dict[str, Any]
    label_smoothing: float
    seconds: float

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.outputs.label)

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """The confusion matrix, int64 (label, predicted); 8 MB for 1,000 classes.

        Images without finite probabilities are in no cell.
        """
        from sklearn.metrics import confusion_matrix

        classes = np.arange(len(self.matching.classes))
        return confusion_matrix(self.outputs.label, self.outputs.predicted, labels=classes)

    @functools.cached_property
    def per_class(self) -> PerClass:
        """The metrics of each class of the network."""
        from sklearn.metrics import precision_recall_fscore_support

        outputs, classes = self.outputs, len(self.matching.classes)
        precision, recall, f1, support = precision_recall_fscore_support(
            outputs.label, outputs.predicted, labels=np.arange(classes), zero_division=np.nan
        )
        support = support.astype(np.int64)
        hits = np.bincount(outputs.label[outputs.top5], minlength=classes)
        with np.errstate(invalid="ignore"):  # 0 / 0
            top5 = hits / support
        return PerClass(support, self.matrix.sum(axis=0), recall, top5, precision, f1)

    def most_confused(self, most: int) -> list[tuple[int, int, int]]:
        """Return (label, predicted, images) of the pairs of classes with most errors.

        Pairs of as many errors are in order of label.
        """
        off = self.matrix * (1 - np.eye(len(self.matrix), dtype=np.int64))
        order = np.argsort(-off.ravel(), kind="stable")[: min(most, np.count_nonzero(off))]
        cells = (divmod(cell, len(off)) for cell in order.tolist())
        return [(label, predicted, int(off[label, predicted])) for label, predicted in cells]

    @functools.cached_property
    def classes_text(self) -> str:
        """The number of classes, and of those that could be predicted if they are more."""
        own, every = len(self.matching.outputs), len(self.matching.classes)
        among = f", predicted among {every:,}" if own < every else ""
        return f"{own:,} classes{among}"

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics by name, as in ``summary.json``; fractions, and nats an image."""
        outputs, confidence = self.outputs, self.outputs.confidence
        expected, greatest = calibration_errors(confidence, outputs.top1)
        equal_mass, _ = calibration_errors(confidence, outputs.top1, quantiles=True)
        known = confidence[np.isfinite(confidence)]
        result: dict[str, Any] = {
            "weights": self.weights,
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "classes": len(self.matching.outputs),
            "predicted_among": len(self.matching.classes),
            "matching": self.matching.note or "the same classes in the same order",
        }
        for name in ("top1", "top5"):
            count = int(np.count_nonzero(getattr(outputs, name)))
            result[name] = count / self.images
            result[f"{name}_count"] = count
            result[f"{name}_interval"] = list(wilson_interval(count, self.images))
        return result | {
            "loss": _mean(outputs.loss),
            "label_smoothing": self.label_smoothing,
            "smoothed_loss": _mean(outputs.smoothed_loss),
            "brier": _mean(outputs.brier),
            "expected_calibration_error": expected,
            "expected_calibration_error_equal_mass": equal_mass,
            "greatest_calibration_error": greatest,
            "mean_confidence": _mean(known) if len(known) else math.nan,
            "not_finite": int(np.count_nonzero(~np.isfinite(outputs.brier))),
            "unreadable": [
                {"name": each.name, "reason": each.reason} for each in self.unreadable.found
            ],
            "preprocessing": self.preprocessing,
            "seconds": self.seconds,
        }


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values, dtype=np.float64))
