"""Encoded images of any size, read by example index, and users' datasets in this form.

To add a storage format, write a module with a class that has the methods of `Records` and a
function that opens it, and enter the function into `openers.SOURCES`. The module is complete with
that: `photos.Photos` decodes, crops and resizes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from largebatch.errors import DataError, one_line


class Records(Protocol):
    """One split of a labelled dataset of encoded images.

    `read` is thread-safe. An instance can be pickled into a worker process, which opens the files
    itself.

    Attributes:
        name: The specification it was opened by.
        classes: Name of each label.
    """

    name: str
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """Read encoded images and their labels.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            images: contents of b image files.
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def where(self, example: int) -> str:
        """Return the file, or the record of a file, that holds an example, for messages."""
        ...

    def marks(self) -> Iterable[bytes]: ...

    def describe(self) -> str:
        """Return one line about what was found."""
        ...


class Items(Protocol):
    """A user's dataset: one split of labelled images, read by item from several threads at once.

    It may also have `mean` and `std`, of each of three channels in 0..255 (ImageNet's otherwise),
    and `describe()` and `marks()` as `Records` have.

    Attributes:
        classes: Name of each label.
    """

    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Number of examples in the split."""
        ...

    def __getitem__(self, index: int) -> Any:
        """Return (image, label), or a mapping with these keys.

        The image is the content of an image file, bytes; or uint8 (H, W), (H, W, 1) or (H, W, 3);
        or an image of Pillow. The label is an integer in [0, number of classes).
        """
        ...


class ItemRecords:
    """`Items` as `Records`; the images may be arrays or images of Pillow."""

    def __init__(self, name: str, items: Items) -> None:
        self.name = name
        self.classes = tuple(str(label) for label in items.classes)
        self._items = items
        for statistic in ("mean", "std"):
            if hasattr(items, statistic):
                setattr(self, statistic, getattr(items, statistic))

    def __len__(self) -> int:
        return len(self._items)

    def read(self, ids: np.ndarray) -> tuple[list[Any], np.ndarray]:
        """See `Records.read`; an image is bytes, uint8 (h, w, 3) or an image of Pillow."""
        found = [self._item(int(index)) for index in ids]
        return [image for image, _ in found], np.array([label for _, label in found], np.int32)

    def where(self, example: int) -> str:
        return f"{self.name} example {example}"

    def marks(self) -> Iterable[bytes]:
        """Return the marks of the dataset, if it has any."""
        return self._items.marks() if hasattr(self._items, "marks") else ()

    def describe(self) -> str:
        if hasattr(self._items, "describe"):
            return self._items.describe()
        return f"{self.name}: {len(self):,} examples, {len(self.classes)} classes"

    def _item(self, index: int) -> tuple[bytes | np.ndarray, int]:
        try:
            item = self._items[index]
            image, label = (
                (item["image"], item["label"]) if isinstance(item, Mapping) else tuple(item)
            )
        except Exception as error:
            raise DataError(
                f"{self.where(index)}: reading it raised {type(error).__name__}: "
                f"{one_line(error)}; an item is (image, label)"
            ) from error
        if not isinstance(label, int | np.integer) or not 0 <= label < len(self.classes):
            raise DataError(
                f"{self.where(index)}: expected a label from 0 to {len(self.classes) - 1}, got "
                f"{label!r}"
            )
        return self._image(image, index), int(label)

    def _image(self, image: Any, index: int) -> Any:
        if isinstance(image, bytes):
            return image
        if hasattr(image, "convert"):  # of Pillow, as Hugging Face's datasets give them
            return image
        pixels = np.asarray(image)
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        good = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3)
        if not good or not pixels.size:
            raise DataError(
                f"{self.where(index)}: expected bytes of an image file or uint8 (H, W, 3), got "
                f"{type(image).__name__} of {pixels.dtype} {pixels.shape}"
            )
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
