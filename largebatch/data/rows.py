"""What a row of a batch shows: which example, which crop, and what takes an unreadable one's place.

Each row is a function of its sample position and the seed, so that it is the same whoever reads it,
with which others and after however many restarts.
"""

from dataclasses import dataclass

import numpy as np

from largebatch.data.assembly import Arrays
from largebatch.data.augment import Augment
from largebatch.data.order import Order
from largebatch.data.sources import CroppingSource, Source, StoredSource
from largebatch.data.unreadable import as_far_as_possible
from largebatch.data.views import View


@dataclass(frozen=True)
class TrainRows:
    """The local rows of a run's microbatches.

    `read` returns images, labels int32, ids int64, how many unreadable examples were passed over
    int64 and, for the device, crops int32 (rows, 5). In the place of an example that cannot be
    decoded stands the next one that can: its picture with the draws of its own id, its label.

    Attributes:
        source: What is read.
        stored: The same where the device cuts out the crops.
        order: Which example stands at which sample position.
        augment: Augmentation.
        start: Sample position of the first row of the first microbatch.
        microbatch: Global rows of a microbatch.
        rows: [first, last) of them that are local.
        centre: Whether training sees what evaluation does.
        limit: Examples to pass over at most. One more is passed over without being read: whoever
            accounts for them then stops the run.
    """

    source: Source
    stored: StoredSource | None
    order: Order
    augment: Augment
    start: int
    microbatch: int
    rows: tuple[int, int]
    centre: bool
    limit: int

    def shape(self, batch: int) -> tuple[int, int, int]:
        """As of `Rows`; the same for every microbatch."""
        return _stored_shape(self.stored) if self.stored else self.source.image_shape

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        """As of `Rows`."""
        position = self.start + batch * self.microbatch + self.rows[0]
        positions = np.arange(position + first, position + last, dtype=np.int64)
        ids, epochs = self.order.ids(positions), self.order.epochs(positions)
        drawn = {"seed": self.order.seed, "epochs": epochs}
        passed = np.zeros(len(ids), np.int64)
        if self.stored is not None:
            if self.centre:
                shape = self.source.image_shape[:2]
                images, labels, boxes = self.stored.read_stored_centres(ids, shape, out=out)
            else:
                images, labels, boxes = self.stored.read_stored(ids, **drawn, out=out)
            flips = self.augment.flips(**drawn, ids=ids)
            return images, labels, ids, passed, np.column_stack([boxes, flips]).astype(np.int32)
        (images, labels), rows = as_far_as_possible(self._pictures, ids, epochs, out)
        while len(rows):
            ids[rows] = (ids[rows] + 1) % len(self.source)
            passed[rows] += 1
            if passed[rows[0]] > self.limit:  # the same for all that are left
                break
            found, again = as_far_as_possible(self._pictures, ids[rows], epochs[rows])
            images[rows], labels[rows] = found
            rows = rows[again]
        images = self.augment(images, **drawn, ids=ids)
        return _placed(images, out), labels, ids, passed

    def _pictures(
        self, ids: np.ndarray, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images, before they are augmented, and labels."""
        if isinstance(self.source, CroppingSource) and not self.centre:
            return self.source.read_crops(ids, seed=self.order.seed, epochs=epochs, out=out)
        return self.source.read(ids)


@dataclass(frozen=True)
class EvaluationRows:
    """The local rows of evaluation batches.

    `read` returns images, labels int32, mask float32, whether the example is unreadable (bool) and,
    for the device, crops int32 (rows, 5). An example that cannot be decoded keeps its label and
    counts, so that it can only lower the accuracy; it is seen as the mean grey.

    Attributes:
        source: What is read.
        stored: The same where the device cuts out the centre.
        batches: The view of each batch, and where in it this process's rows begin.
    """

    source: Source
    stored: StoredSource | None
    batches: tuple[tuple[View, int], ...]

    def shape(self, batch: int) -> tuple[int, int, int]:
        """As of `Rows`."""
        if self.stored:
            return _stored_shape(self.stored)
        return (*self.batches[batch][0].shape, self.source.image_shape[2])

    def ids(self, batch: int, first: int, last: int) -> np.ndarray:
        """The examples of rows [first, last): int64, fewer where the last rows are padding."""
        view, begin = self.batches[batch]
        return view.ids[begin + first : begin + last]

    def read(self, batch: int, first: int, last: int, out: np.ndarray | None) -> Arrays:
        """As of `Rows`."""
        shape, ids = self.batches[batch][0].shape, self.ids(batch, first, last)
        count = len(ids)  # the last batch may leave a process nothing but padding
        images = np.empty((last - first, *self.shape(batch)), np.uint8) if out is None else out
        images[count:] = 0
        labels = np.zeros(last - first, np.int32)
        mask = np.zeros(last - first, np.float32)
        mask[:count] = 1
        grey = np.zeros(last - first, bool)
        if self.stored is not None:
            crops = np.tile(np.array([0, 0, 1, 1, 0], np.int32), (last - first, 1))
            if count:
                _, labels[:count], crops[:count, :4] = self.stored.read_stored_centres(
                    ids, shape, out=images[:count]
                )
            return images, labels, mask, grey, crops
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
    """The images in `out`, if that is given and they are not there yet."""
    if out is None or images is out:
        return images
    out[...] = images
    return out


def _stored_shape(source: StoredSource) -> tuple[int, int, int]:
    return (source.stored_size, source.stored_size, source.image_shape[2])
