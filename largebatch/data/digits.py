"""`digits`: the 1,797 real 8×8 handwritten digits that come with scikit-learn."""

import numpy as np

from largebatch.data.source import Source, SourceOptions, check_sizes
from largebatch.errors import DataError

_SIDE = 8


class Digits(Source):
    """One split of scikit-learn's `load_digits`.

    Every fifth image of the original order (index % 5 == 0) is held out: 1,437 train, 360 validate.
    Grey values 0..16 are scaled by 15 to 0..240.
    """

    name = "digits"
    classes = tuple("0123456789")
    image_shape = (_SIDE, _SIDE, 1)

    def __init__(self, split: str) -> None:
        from sklearn.datasets import load_digits  # a second of import

        found = load_digits()
        images = (found.images * 15).astype(np.uint8)[..., None]
        held_out = np.arange(len(images)) % 5 == 0
        chosen = held_out if split == "validation" else ~held_out
        self.mean = (float(images[~held_out].mean()),)
        self.std = (float(images[~held_out].std()),)
        self._split = split
        self._images = images[chosen]
        self.labels = found.target.astype(np.int32)[chosen]

    def __len__(self) -> int:
        return len(self._images)

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._images[ids], self.labels[ids]

    def describe(self) -> str:
        return f"digits: {len(self):,} {self._split} images of 8×8, 10 classes (scikit-learn)"


def open_digits(spec: str, split: str, options: SourceOptions) -> Digits:
    """Open `digits`, whose number of examples and classes is fixed.

    Args:
        spec: `digits`.
        split: `train` or `validation`.
        options: `examples` 0 or 1,437, `classes` 0 or 10.

    Raises:
        DataError: An option asks for another number, or the specification has a colon.
    """
    if spec != "digits":
        raise DataError(f"data.source: {spec!r} has a part after the colon; write 'digits'")
    check_sizes("digits", options, examples=1437, classes=10)
    return Digits(split)
