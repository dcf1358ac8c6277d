"""Shapes at which the validation examples are evaluated."""

from dataclasses import dataclass

import numpy as np

from largebatch.data.reading import Reading, read_ahead
from largebatch.data.sources import RectangularSource, Source
from largebatch.data.unreadable import as_far_as_possible
from largebatch.errors import ConfigError

# Bytes of a file: most readers fetch more than its header.
_FILE_BYTES = 128 << 10
_FILES = 256  # read by a thread at a time


@dataclass(frozen=True, eq=False)
class View:
    """Examples evaluated at one shape.

    Attributes:
        shape: Height and width.
        ids: int64 (n,).
    """

    shape: tuple[int, int]
    ids: np.ndarray


def square_views(source: Source, side: int = 0) -> tuple[View, ...]:
    """Return one view of all examples in index order, in squares.

    Args:
        source: The validation split.
        side: Pixels a side; 0 is the source's own.

    Raises:
        ConfigError: The source has images of one shape only.
    """
    shape = (side, side) if side else source.image_shape[:2]
    if shape != source.image_shape[:2] and not isinstance(source, RectangularSource):
        raise ConfigError(
            f"data.evaluation_size: expected 0 or {source.image_shape[0]} for {source.name}, got "
            f"{side}; set it to 0",
            unused=("data.evaluation_size",),
        )
    return (View(shape, np.arange(len(source), dtype=np.int64)),)


def rectangular_views(source: Source, reading: Reading, side: int = 0) -> tuple[View, ...]:
    """Group the examples by aspect, so that evaluation sees most of every image.

    The rectangular validation of fast.ai's DAWNBench entry (2018): the shorter side stays that of
    the source, the longer is the multiple of 64 pixels above it (32 for small images) that is
    nearest to the image's aspect, at most twice as long. Every header is read once.

    Args:
        source: The validation split.
        reading: Threads and memory.
        side: Pixels of the shorter side; 0 is the source's own.

    Returns:
        Views of all examples, portraits first; at most nine for sides of 224.

    Raises:
        ConfigError: The source has images of one shape only.
        DataError: An example cannot be read.
    """
    if not isinstance(source, RectangularSource):
        raise ConfigError(
            f"data.rectangular=true: expected images of different shapes, and {source.name} has "
            "one shape; set it to false",
            unused=("data.rectangular",),
        )
    parts = read_ahead(_Sizes(source), -(-len(source) // _FILES), _FILES * _FILE_BYTES, reading)
    sizes = np.concatenate(list(parts))
    shapes = nearest_shapes(sizes, side or source.image_shape[0])
    distinct, group = np.unique(shapes, axis=0, return_inverse=True)
    by_aspect = np.argsort(distinct[:, 1] / distinct[:, 0])
    return tuple(
        View((int(distinct[k, 0]), int(distinct[k, 1])), np.flatnonzero(group.ravel() == k))
        for k in by_aspect
    )


def nearest_shapes(sizes: np.ndarray, side: int) -> np.ndarray:
    """Return the shape at which each image is evaluated.

    Args:
        sizes: int64 (b, 2), height and width.
        side: Pixels of the shorter side.

    Returns:
        int64 (b, 2): `side` by a longer side of `side` plus a multiple of 64, or of 32 where `side`
        is below 128, at most twice `side`.
    """
    step = 64 if side >= 128 else 32
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    more = np.rint(side * (long / short - 1) / step).astype(np.int64)
    long = side + step * np.minimum(more, side // step)
    portrait = sizes[:, 0] > sizes[:, 1]
    return np.where(
        portrait[:, None],
        np.stack([long, np.full_like(long, side)], axis=1),
        np.stack([np.full_like(long, side), long], axis=1),
    )


@dataclass(frozen=True)
class _Sizes:
    """Reads heights and widths of a part of the examples; can be pickled."""

    source: RectangularSource

    def __call__(self, part: int) -> np.ndarray:
        first = part * _FILES
        ids = np.arange(first, min(first + _FILES, len(self.source)), dtype=np.int64)
        # Undecodable images have size 1×1; evaluation counts them.
        return as_far_as_possible(self.source.sizes, ids)[0]
