"""The most probable classes of pictures, prepared and computed as an evaluation does."""

import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch import data
from largebatch.weights.evaluation.channels import with_channels
from largebatch.weights.evaluation.classifier import Classifier
from largebatch.weights.evaluation.pictures import FileRecords
from largebatch.weights.evaluation.run import batch_size, parts_of, reading_of
from largebatch.weights.evaluation.settings import Settings


@dataclasses.dataclass(frozen=True)
class Guess:
    """A class that a picture may be of."""

    name: str
    label: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Of one file."""

    file: str
    guesses: tuple[Guess, ...] = ()
    """The most probable first; none where there is an error."""
    error: str = ""
    """Why the file could not be used."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        if self.error:
            return {"file": self.file, "error": self.error}
        top = [
            {"class": g.name, "label": g.label, "probability": g.probability} for g in self.guesses
        ]
        return {"file": self.file, "top": top}


def predictions(
    classifier: Classifier,
    files: Sequence[Path],
    settings: Settings,
    classes: tuple[str, ...],
    *,
    batch: int = 0,
) -> Generator[Prediction]:
    """Predicts each file, in order, as soon as its batch is done.

    Args:
        classifier: Keeps as many classes as are wanted.
        files: At least one; what is in them decides how they are decoded.
        settings: How they are seen.
        classes: Names of the outputs.
        batch: Pictures at a time, 0 for 64 a device.
    """
    from largebatch.data.photos import Photos  # brings the image libraries

    records = FileRecords(files, classes)
    channels = len(settings.mean)
    photos = with_channels(Photos(records, settings.options), channels, settings.mean, settings.std)
    unreadable = data.Unreadable("files", len(records), share=1.0)
    ready: dict[int, Prediction] = {}
    following = 0
    for ids, _, kept in parts_of(
        classifier,
        photos,
        settings,
        unreadable,
        batch=batch_size(len(records), classifier.mesh.size, batch),
        reading=reading_of(),
    ):
        errors = {each.example: each.reason for each in unreadable.found} | records.failed
        for row, example in enumerate(ids.tolist()):
            where = records.where(example)
            if example in errors:
                ready[example] = Prediction(where, error=errors[example])
                continue
            guesses = _guesses(kept.top[row], kept.probabilities[row], classes)
            unknown = "" if guesses else "the logits are not finite; are the weights sound?"
            ready[example] = Prediction(where, guesses, unknown)
        while following in ready:  # by aspect, if each picture is seen at its own
            yield ready.pop(following)
            following += 1


def _guesses(
    top: np.ndarray, probabilities: np.ndarray, classes: tuple[str, ...]
) -> tuple[Guess, ...]:
    """None where there are no probabilities."""
    pairs = zip(top.tolist(), probabilities.tolist(), strict=True)
    return tuple(
        Guess(classes[label], label, probability) for label, probability in pairs if label >= 0
    )
