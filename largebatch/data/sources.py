"""What a data source is, and the registry of those that `open_source` knows."""

import pkgutil
from collections.abc import Iterable
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from largebatch.errors import DataError, did_you_mean

Split = Literal["train", "validation"]


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
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads examples as training sees them, before `Augment`; takes the place of `read` there.

        Args:
            ids: int64 (b,), in [0, len).
            seed: Seed of the run.
            epochs: int64 (b,), the epoch of each example; the crop depends on (seed, epoch, id).

        Returns:
            As of `read`.

        Raises:
            DataError: An example cannot be read.
        """
        ...


# Scheme -> "module:function", imported when it is asked for: readers bring heavy libraries. The
# function is called as opener(spec, split, image_size=, examples=, classes=), spec being
# "scheme" or "scheme:rest".
REGISTRY: dict[str, str] = {
    "digits": "largebatch.data.digits:open_digits",
    "synthetic": "largebatch.data.synthetic:open_synthetic",
}


def _known(what: str, name: str, names: Iterable[str]) -> None:
    """Raises a DataError with the nearest match unless `name` is one of `names`."""
    names = sorted(names)
    if name not in names:
        raise DataError(f"{what}: {name!r} is unknown; {did_you_mean(name, names)}")


def open_source(
    spec: str, split: Split, *, image_size: int = 0, examples: int = 0, classes: int = 0
) -> Source:
    """Opens one split of a data source.

    Args:
        spec: `scheme` or `scheme:rest`, e.g. `digits` or `synthetic`.
        split: `train` or `validation`.
        image_size: Pixels a side; 0 is the source's own.
        examples: Training examples, whichever split is opened; 0 is the source's own.
        classes: Classes; 0 is the source's own.

    Returns:
        The split.

    Raises:
        DataError: The source or the split is unknown, absent or not of the size asked for.
    """
    scheme = spec.partition(":")[0]
    _known("data.source", scheme, REGISTRY)
    _known("split", split, get_args(Split))
    sizes = {"image_size": image_size, "examples": examples, "classes": classes}
    for field, value in sizes.items():
        if value < 0:
            raise DataError(f"data.{field} is {value}; use 0 for the source's own")
    return pkgutil.resolve_name(REGISTRY[scheme])(spec, split, **sizes)
