"""What a data source is; `openers` opens them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from largebatch.errors import ConfigError, DataError

Split = Literal["train", "validation"]


@dataclass(frozen=True)
class SourceOptions:
    """What a source is asked to deliver; each source says which of it applies.

    Attributes:
        image_size: Pixels a side; 0 is the source's own.
        examples: Training examples, whichever split is opened; 0 is the source's own.
        classes: Classes; 0 is the source's own.
        data_dir: Where TFDS keeps its sets; empty is TFDS' own place.
        crop_area: Least and greatest share of a photograph's area that a training crop shows.
        crop_ratio: Least and greatest width / height of that crop.
        evaluation_crop: Share of the shorter side that evaluation sees, in the middle.
        resampling: `linear` or `antialias`, see `images.resize`.
    """

    image_size: int = 0
    examples: int = 0
    classes: int = 0
    data_dir: str = ""
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    evaluation_crop: float = 0.875
    resampling: str = "linear"


class Source(Protocol):
    """One split of a labelled image data set, read by example index.

    `read` is called from several threads at once.

    Attributes:
        name: The specification it was opened by.
        classes: Name of each label.
        image_shape: (H, W, C) of the images that `read` delivers.
        mean: Mean of each channel over the training split, in 0..255.
        std: Standard deviation of each channel over the training split, in 0..255.
    """

    name: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        """Examples in the split."""
        ...

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads examples as evaluation sees them; the same ids give the same bits.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            images: uint8 (b, H, W, C).
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def describe(self) -> str:
        """One line that says what was found."""
        ...


@runtime_checkable
class CroppingSource(Source, Protocol):
    """A source whose stored images exceed `image_shape`: training takes a random crop of each.

    A crop chosen before decoding saves most of the decoder's work, so it belongs to the source.
    """

    def read_crops(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads examples as training sees them, before `Augment`; takes the place of `read` there.

        Args:
            ids: int64 (b,), in [0, len).
            seed: Seed of the run.
            epochs: int64 (b,), the epoch of each example; the crop depends on (seed, epoch, id).
            out: uint8 (b, H, W, C), contiguous, where the images go; None makes an array.

        Returns:
            As of `read`.

        Raises:
            DataError: An example cannot be read.
        """
        ...


@runtime_checkable
class RectangularSource(Source, Protocol):
    """A source that can be evaluated at other shapes than its own."""

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """Height and width of the pictures that are stored.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            int64 (b, 2).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The middle of each picture, as `read`, at another height and width.

        Args:
            ids: int64 (b,), in [0, len).
            shape: Height and width.

        Returns:
            images: uint8 (b, *shape, 3).
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...


@runtime_checkable
class StoredSource(RectangularSource, Protocol):
    """A source of decoded pictures of one size, from which the device can cut its crops.

    Attributes:
        stored_size: S, pixels a side.
    """

    stored_size: int

    def read_stored(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pictures with the boxes that `CroppingSource.read_crops` would cut out.

        Args:
            ids: int64 (b,), in [0, len).
            seed: Seed of the run.
            epochs: int64 (b,), the epoch of each example.
            out: uint8 (b, S, S, 3), contiguous, where the images go; None makes an array.

        Returns:
            images: uint8 (b, S, S, 3).
            labels: int32 (b,).
            boxes: int32 (b, 4): top, left, height, width.

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def read_stored_centres(
        self, ids: np.ndarray, shape: tuple[int, int], out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pictures with the boxes that `read_centres` would cut out; as of `read_stored`."""
        ...


def check_sizes(name: str, options: SourceOptions, **own: int) -> None:
    """Raises a DataError if other sizes are asked for than a data set has.

    Args:
        name: The data set, for the message.
        options: What is asked for.
        **own: What it has, by option.
    """
    for field, has in own.items():
        asked = getattr(options, field)
        if asked not in (0, has):
            raise DataError(
                f"data.{field} is {asked} but {name} has {has}; set it to 0 or use another source"
            )


def differing(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """How two lists of class names differ, in words: their lengths, and the first other name."""
    said = f"{len(ours):,} and {len(theirs):,} classes"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"{said}, number {number} {one!r} and {other!r}"
    return said


def stored_source(source: Source) -> StoredSource:
    """The source, checked to be one from which the device can cut its crops.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(source, StoredSource):
        raise ConfigError(
            f"data.crops=device needs a store of decoded pictures, and {source.name} is none; "
            "use data.crops=host or data.source=decoded:PATH"
        )
    return source
