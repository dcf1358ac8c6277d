"""Pictures with the number of channels that a network takes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from largebatch.data import Source
from largebatch.data.unreadable import IncompleteReadError
from largebatch.errors import DataError

# Of red, green and blue in luma (ITU-R BT.601), in 1/65,536, as Pillow's mode L; they sum to 1.
_LUMA = np.array([19_595, 38_470, 7_471], np.int64)


def to_grey(images: np.ndarray) -> np.ndarray:
    """Luma, rounded half up; a grey picture keeps its levels.

    Args:
        images: uint8 (…, 3).

    Returns:
        uint8 (…, 1).
    """
    return ((images @ _LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]


def with_channels(
    source: Source, channels: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Source:
    """The source as a network of so many channels sees it: itself if they are as many.

    Args:
        source: Of 1 or 3 channels.
        channels: Of the network.
        mean: Of its normalisation, in 0..255.
        std: Likewise.

    Raises:
        DataError: They are neither 1 nor 3.
    """
    has = source.image_shape[2]
    if has == channels:
        return source
    if {has, channels} != {1, 3}:
        raise DataError(
            f"{source.name} has pictures of {has} channels, the weights take {channels}; 1 and 3 "
            "can be turned into each other, these cannot"
        )
    return _Converted(source, channels, mean, std)


class _Converted:
    """A `FallibleSource` whose pictures are made grey, or three times the same."""

    def __init__(
        self, source: Source, channels: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        self._source = source
        self.name = source.name
        self.classes = source.classes
        self.image_shape = (*source.image_shape[:2], channels)
        self.mean = mean
        self.std = std

    def __len__(self) -> int:
        return len(self._source)

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As of `Source.read`."""
        return self._converted(self._source.read, ids)

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """As of `RectangularSource.read_centres`."""
        return self._converted(self._source.read_centres, ids, shape)

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """As of `RectangularSource.sizes`."""
        return self._source.sizes(ids)

    def explain(self, example: int) -> tuple[str, str]:
        """As of `FallibleSource.explain`."""
        return self._source.explain(example)

    def describe(self) -> str:
        """As of `Source.describe`."""
        kind = "grey" if self.image_shape[2] == 1 else "three equal channels"
        return f"{self._source.describe()}, turned into {kind}"

    def _converted(self, read: Callable, *arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        try:
            images, labels = read(*arguments)
        except IncompleteReadError as error:
            images, labels = error.partial
            partial = self._as_wanted(images), labels
            raise IncompleteReadError(str(error), partial, error.rows) from error
        return self._as_wanted(images), labels

    def _as_wanted(self, images: np.ndarray) -> np.ndarray:
        return to_grey(images) if self.image_shape[2] == 1 else np.repeat(images, 3, axis=-1)
