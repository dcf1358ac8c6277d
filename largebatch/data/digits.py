"""`digits`: the 1,797 real 8×8 handwritten digits that come with scikit-learn."""

import numpy as np

from largebatch.data.sources import SourceOptions, check_sizes
from largebatch.errors import DataError

_SIDE = 8


class Digits:
    """One split of scikit-learn's `load_digits`, a `RectangularSource`.

    Every fifth image of the original order (index % 5 == 0) is held out: 1,437 train, 360 validate.
    Grey values 0..16 are scaled by 15 to 0..240. Other sizes than 8×8 are interpolated linearly,
    without cropping.
    """

    name = "digits"
    classes = tuple("0123456789")

    def __init__(self, split: str, image_size: int = _SIDE) -> None:
        from sklearn.datasets import load_digits  # a second of import

        found = load_digits()
        images = (found.images * 15).astype(np.uint8)[..., None]
        held_out = np.arange(len(images)) % 5 == 0
        chosen = held_out if split == "validation" else ~held_out
        self.image_shape = (image_size, image_size, 1)
        self.mean = (float(images[~held_out].mean()),)
        self.std = (float(images[~held_out].std()),)
        self._split = split
        self._images = images[chosen]
        self._seen = _resized(self._images, self.image_shape[:2])
        self._labels = found.target.astype(np.int32)[chosen]

    def __len__(self) -> int:
        return len(self._images)

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._seen[ids], self._labels[ids]

    def class_counts(self) -> list[int]:
        return np.bincount(self._labels, minlength=len(self.classes)).tolist()

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        return np.full((len(ids), 2), _SIDE, np.int64)

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        return _resized(self._images[ids], shape), self._labels[ids]

    def describe(self) -> str:
        size = "×".join(map(str, self.image_shape))
        return f"digits: {len(self):,} {self._split} images of {size}, 10 classes (scikit-learn)"


def open_digits(spec: str, split: str, options: SourceOptions) -> Digits:
    """Open `digits`, whose number of examples and classes is fixed.

    Args:
        spec: `digits`.
        split: `train` or `validation`.
        options: `image_size` 0 for 8, `examples` 0 or 1,437, `classes` 0 or 10.

    Returns:
        The split.

    Raises:
        DataError: An option asks for another number, or the specification has a colon.
    """
    if spec != "digits":
        raise DataError(f"data.source: {spec!r} has a part after the colon; write 'digits'")
    check_sizes("digits", options, examples=1437, classes=10)
    return Digits(split, options.image_size or _SIDE)


def _resized(images: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Resize uint8 (n, 8, 8, 1)."""
    if shape == images.shape[1:3]:
        return images
    import cv2

    out = np.empty((len(images), *shape, 1), np.uint8)
    for image, place in zip(images, out, strict=True):
        cv2.resize(image, shape[::-1], dst=place, interpolation=cv2.INTER_LINEAR)
    return out
