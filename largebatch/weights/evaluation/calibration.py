"""How far the probability of a prediction is from how often such predictions are right."""

import dataclasses
import itertools
import math

import numpy as np

BINS = 15
"""As of Guo et al. 2017."""


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Predictions binned by their confidence; empty bins have NaN for means.

    Attributes:
        edges: float64 (bins + 1,), confidence in [0, 1].
        counts: int64 (bins,), images.
        confidence: float64 (bins,), mean probability of the predicted class.
        accuracy: float64 (bins,), share of right predictions.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def expected_error(self) -> float:
        """Σ counts / images · |accuracy − confidence|: the ECE of Guo et al. 2017, equation 3."""
        images = self.counts.sum()
        return float(np.nansum(self.counts * self._gaps) / images) if images else math.nan

    @property
    def greatest_error(self) -> float:
        """The largest |accuracy − confidence| of a bin: their MCE."""
        return float(np.nanmax(self._gaps)) if self.counts.any() else math.nan

    @property
    def _gaps(self) -> np.ndarray:
        return np.abs(self.accuracy - self.confidence)


def equal_width(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Bins of equal width (Guo et al. 2017, arXiv 1706.04599): (0, 1/15], (1/15, 2/15] and on.

    Args:
        confidence: float (images,) in [0, 1]; images that have NaN are left out.
        right: bool (images,).
        bins: How many.
    """
    known = np.isfinite(confidence)
    confidence, right = np.asarray(confidence[known], np.float64), right[known]
    edges = np.linspace(0.0, 1.0, bins + 1)
    # The first edge that is not below: a confidence on an edge belongs to the bin below it.
    places = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    return _calibration(edges, places, confidence, right)


def equal_mass(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Bins of equally many images (Nguyen and O'Connor 2015, arXiv 1508.05154), or one fewer.

    Where most confidences are near 1, bins of equal width say little; these adapt. Images of equal
    confidence may be cut apart, in the order of the split.

    Args:
        confidence: As of `equal_width`.
        right: Likewise.
        bins: How many; at most one for each image.
    """
    known = np.isfinite(confidence)
    confidence, right = np.asarray(confidence[known], np.float64), right[known]
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, max(1, min(bins, len(order))))
    places = np.empty(len(order), np.int64)
    for number, part in enumerate(parts):
        places[part] = number
    inner = [
        (confidence[one[-1]] + confidence[other[0]]) / 2 for one, other in itertools.pairwise(parts)
    ]
    return _calibration(np.array([0.0, *inner, 1.0]), places, confidence, right)


def _calibration(
    edges: np.ndarray, places: np.ndarray, confidence: np.ndarray, right: np.ndarray
) -> Calibration:
    bins = len(edges) - 1
    counts = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of an empty bin
        return Calibration(
            edges,
            counts,
            np.bincount(places, confidence, minlength=bins) / counts,
            np.bincount(places, right.astype(np.float64), minlength=bins) / counts,
        )
