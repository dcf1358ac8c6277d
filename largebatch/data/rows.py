"""The rows of a batch: the example and crop of each, and the replacement of undecodable images.

Each row is a function of its sample position and the seed. Processes, microbatches and restarts do
not change it.
"""

from dataclasses import dataclass

import numpy as np

from largebatch.data.assembly import Arrays
from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.sources import CroppingSource, Source
from largebatch.data.unreadable import as_far_as_possible
from largebatch.data.views import View


@dataclass(frozen=True)
class TrainRows:
    """The local rows of a run's microbatches.

    `read` returns images, labels int32, ids int64, the number of undecodable examples skipped int64
    and the arrays of `Augment.for_device`. The next decodable example replaces an undecodable one:
    its image, with the random choices of its own id, and its label.

    Attributes:
        source: The source.
        order: The example at each sample position.
        augment: Augmentation.
        start: Sample position of the first row of the first microbatch.
        microbatch: Global rows of a microbatch.
        rows: The local ones, [first, last).
        centre: Whether training uses the central crops of evaluation.
        limit: Greatest number of undecodable examples. The feed stops the run when one more is
            found, which is not replaced.
    """

    source: Source
    order: Order
    augment: Augment
    start: int
    microbatch: int
    rows: tuple[int, int]
    centre: bool
    limit: int

    def shape(self, batch: int) -> tuple[int, int, int]:
        return self.source.image_shape

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        position = self.start + batch * self.microbatch + self.rows[0]
        positions = np.arange(position + first, position + last, dtype=np.int64)
        ids, epochs = self.order.ids(positions), self.order.epochs(positions)
        passed = np.zeros(len(ids), np.int64)
        (images, labels), rows = as_far_as_possible(self._pictures, ids, epochs, out)
        while len(rows):
            ids[rows] = (ids[rows] + 1) % len(self.source)
            passed[rows] += 1
            if passed[rows[0]] > self.limit:  # the same for all remaining rows
                break
            found, again = as_far_as_possible(self._pictures, ids[rows], epochs[rows])
            images[rows], labels[rows] = found
            rows = rows[again]
        drawn = {"seed": self.order.seed, "epochs": epochs, "ids": ids}
        images = _placed(self.augment(images, **drawn), out)
        others = self.augment.for_device(images.shape[1:3], positions=positions, **drawn)
        return images, labels, ids, passed, *others

    def _pictures(
        self, ids: np.ndarray, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read images, before they are augmented, and labels."""
        if isinstance(self.source, CroppingSource) and not self.centre:
            return self.source.read_crops(ids, seed=self.order.seed, epochs=epochs, out=out)
        return self.source.read(ids)


@dataclass(frozen=True)
class EvaluationRows:
    """The local rows of evaluation batches.

    `read` returns images, labels int32, mask float32, and whether the example is undecodable
    (bool). An undecodable example keeps its label and counts, with the mean grey as its image: it
    can only lower the accuracy.

    Attributes:
        source: The source.
        batches: The view of each batch, and the index in it of this process's first row.
    """

    source: Source
    batches: tuple[tuple[View, int], ...]

    def shape(self, batch: int) -> tuple[int, int, int]:
        return (*self.batches[batch][0].shape, self.source.image_shape[2])

    def ids(self, batch: int, first: int, last: int) -> np.ndarray:
        """Return the ids of rows [first, last): int64, without padding."""
        view, begin = self.batches[batch]
        return view.ids[begin + first : begin + last]

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        shape, ids = self.batches[batch][0].shape, self.ids(batch, first, last)
        count = len(ids)  # may be 0 in the last batch
        images = np.empty((last - first, *self.shape(batch)), np.uint8) if out is None else out
        images[count:] = 0
        labels = np.zeros(last - first, np.int32)
        mask = np.zeros(last - first, np.float32)
        mask[:count] = 1
        grey = np.zeros(last - first, bool)
        if count:
            found, rows = as_far_as_possible(self._pictures, ids, shape)
            images[:count], labels[:count] = found
            images[rows], grey[rows] = np.rint(self.source.mean), True
        return images, labels, mask, grey

    def _pictures(self, ids: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        if shape == self.source.image_shape[:2]:
            return self.source.read(ids)
        return self.source.read_centres(ids, shape)


def _placed(images: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return the images, copied to `out` unless they are there or it is None."""
    if out is None or images is out:
        return images
    out[...] = images
    return out
