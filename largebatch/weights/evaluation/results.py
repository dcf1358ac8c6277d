"""All that is said of an evaluation, gathered once for the screen and for the files."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from largebatch.data import Unreadable
from largebatch.weights.evaluation import calibration, confusion, outcomes
from largebatch.weights.evaluation.class_names import Matching
from largebatch.weights.evaluation.outcomes import Outcomes
from largebatch.weights.evaluation.settings import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """An evaluation.

    Attributes:
        weights: Where they are from.
        data: What was evaluated, in words.
        split: Its name.
        settings: How the images were prepared.
        matching: Of the network's classes and the data's.
        outcomes: Of each image.
        unreadable: Images that were seen as grey.
        seconds: From the first image to the last, compilation included.
    """

    weights: str
    data: str
    split: str
    settings: Settings
    matching: Matching
    outcomes: Outcomes
    unreadable: Unreadable
    seconds: float

    @functools.cached_property
    def figures(self) -> outcomes.Figures:
        """The split in a few numbers."""
        return outcomes.figures(self.outcomes)

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """As of `confusion.confusion_matrix`."""
        return confusion.confusion_matrix(self.outcomes, len(self.matching.classes))

    @functools.cached_property
    def per_class(self) -> confusion.PerClass:
        """As of `confusion.per_class`."""
        return confusion.per_class(self.matrix, self.outcomes)

    @functools.cached_property
    def reliability(self) -> calibration.Calibration:
        """In bins of equal width."""
        return calibration.equal_width(self.outcomes.confidence, self.outcomes.kept.top1)

    @functools.cached_property
    def reliability_by_mass(self) -> calibration.Calibration:
        """In bins of equally many images."""
        return calibration.equal_mass(self.outcomes.confidence, self.outcomes.kept.top1)

    @property
    def mean_confidence(self) -> float:
        """Of the images whose logits are finite; NaN without any."""
        known = self.outcomes.confidence[np.isfinite(self.outcomes.confidence)]
        return float(known.mean(dtype=np.float64)) if len(known) else math.nan

    @property
    def among(self) -> str:
        """How many classes could be predicted, where they are not those of the data."""
        own, all_ = len(self.matching.outputs), len(self.matching.classes)
        return f"{own:,} classes, predicted among {all_:,}" if own < all_ else f"{all_:,} classes"

    def summary(self) -> dict[str, Any]:
        """The figures by name; shares are fractions, losses nats an image."""
        found, mass = self.figures, self.reliability_by_mass
        result: dict[str, Any] = {
            "weights": self.weights,
            "data": self.data,
            "split": self.split,
            "images": len(self.outcomes),
            "classes": len(self.matching.outputs),
            "predicted_among": len(self.matching.classes),
            "matching": self.matching.note or "the same classes in the same order",
        }
        for name, share in (("top1", found.top1), ("top5", found.top5)):
            result[name] = share.value
            result[f"{name}_count"] = share.count
            result[f"{name}_interval"] = [share.low, share.high]
        result |= {
            "loss": found.loss,
            "label_smoothing": self.settings.label_smoothing,
            "smoothed_loss": found.objective,
            "brier": found.brier,
            "expected_calibration_error": self.reliability.expected_error,
            "expected_calibration_error_equal_mass": mass.expected_error,
            "greatest_calibration_error": self.reliability.greatest_error,
            "mean_confidence": self.mean_confidence,
            "not_finite": found.not_finite,
            "unreadable": [
                {"name": each.name, "reason": each.reason} for each in self.unreadable.found
            ],
            "preprocessing": self.settings.preprocessing(),
            "seconds": self.seconds,
        }
        return result
