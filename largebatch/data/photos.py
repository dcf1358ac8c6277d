"""Encoded images of any size as a `Source`: random crops to train, central ones to evaluate."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.images import Picture, Pixels, Resampling, UndecodableError, rgb
from largebatch.data.records import Records
from largebatch.data.sources import SourceOptions
from largebatch.data.unreadable import IncompleteReadError
from largebatch.errors import ConfigError

DEFAULT_SIZE = 224
# Statistics of ImageNet's training split, commonly rounded; used for any photographs.
MEAN = tuple(255 * x for x in (0.485, 0.456, 0.406))
STD = tuple(255 * x for x in (0.229, 0.224, 0.225))


class Photos:
    """`Records` decoded, cropped and resized: a `CroppingSource` and a `FallibleSource`."""

    def __init__(self, records: Records, options: SourceOptions) -> None:
        """Read nothing yet.

        Args:
            records: The encoded images; they may have their own `mean` and `std`.
            options: Size of the result, boxes and resampling.

        Raises:
            ConfigError: An option is out of range.
        """
        _check_options(options)
        self._records = records
        self._options = options
        self.name = records.name
        self.classes = records.classes
        self.mean = tuple(getattr(records, "mean", MEAN))
        self.std = tuple(getattr(records, "std", STD))
        side = options.image_size or DEFAULT_SIZE
        self.image_shape = (side, side, 3)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the central crop of each image; see `Source.read`."""
        return self.read_centres(ids, self.image_shape[:2])

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        opened = self._open(ids)
        boxes = centre_boxes(opened.sizes, shape, self._options.evaluation_crop)
        return self._views(ids, opened, boxes, shape)

    def read_crops(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read a random crop of each image; see `CroppingSource.read_crops`."""
        opened = self._open(ids)
        options = self._options
        boxes = random_boxes(
            opened.sizes,
            seed=seed,
            epochs=epochs,
            ids=ids,
            area=options.crop_area,
            ratio=options.crop_ratio,
        )
        return self._views(ids, opened, boxes, self.image_shape[:2], out)

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """Read the sizes from the headers; see `RectangularSource.sizes`."""
        opened = self._open(ids)
        self._check(ids, opened, opened.sizes)
        return opened.sizes

    def explain(self, example: int) -> tuple[str, str]:
        contents, _ = self._records.read(np.array([example]))
        try:
            _picture(contents[0]).pixels()
        except UndecodableError as error:
            return self._records.where(example), str(error)
        return self._records.where(example), "a part of it cannot be decoded"

    def marks(self) -> Iterable[bytes]:
        return self._records.marks()

    def encoded(self, ids: np.ndarray) -> tuple[list[Any], np.ndarray]:
        """Read images as they are stored, and labels; see `Records.read`."""
        return self._records.read(ids)

    def names(self) -> Sequence[str]:
        """Return the names of the files or shards; () if the records have none."""
        return getattr(self._records, "names", tuple)()

    def class_counts(self) -> list[int] | None:
        """Return those of the records, if they know them without reading."""
        return getattr(self._records, "class_counts", lambda: None)()

    def describe(self) -> str:
        height, width = self.image_shape[:2]
        return f"{self._records.describe()}, seen at {height}×{width}"

    def _open(self, ids: np.ndarray) -> "_Opened":
        contents, labels = self._records.read(ids)
        pictures: list[Picture | Pixels | None] = []
        spoilt: dict[int, str] = {}  # an exception would keep the read data alive
        for row, content in enumerate(contents):
            try:
                pictures.append(_picture(content))
            except UndecodableError as error:
                pictures.append(None)
                spoilt[row] = str(error)
        shapes = [(p.height, p.width) if p else (1, 1) for p in pictures]
        return _Opened(pictures, np.array(shapes, np.int64).reshape(-1, 2), labels, spoilt)

    def _views(
        self,
        ids: np.ndarray,
        opened: "_Opened",
        boxes: np.ndarray,
        shape: tuple[int, int],
        out: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decode and resize boxes; return images and labels."""
        images = np.empty((len(ids), *shape, 3), np.uint8) if out is None else out
        for row, (picture, box) in enumerate(zip(opened.pictures, boxes.tolist(), strict=True)):
            if picture is None:
                continue
            try:
                picture.view(tuple(box), shape, self._options.resampling, out=images[row])
            except UndecodableError as error:
                opened.spoilt[row] = str(error)
        self._check(ids, opened, (images, opened.labels))
        return images, opened.labels

    def _check(self, ids: np.ndarray, opened: "_Opened", partial: Any) -> None:
        """Raise an IncompleteReadError with the partial result if an image cannot be decoded."""
        if opened.spoilt:
            rows = np.array(sorted(opened.spoilt), np.int64)
            raise IncompleteReadError(
                f"{self._records.where(int(ids[rows[0]]))} cannot be decoded: "
                f"{opened.spoilt[rows[0]]}; replace the file or prepare the dataset again",
                partial,
                rows,
            )


class _Opened(NamedTuple):
    """Images whose headers have been read."""

    pictures: list[Picture | Pixels | None]
    sizes: np.ndarray
    """int64 (b, 2)."""
    labels: np.ndarray
    """int32 (b,)."""
    spoilt: dict[int, str]
    """By row, what is wrong with an image that cannot be decoded."""


def _picture(content: Any) -> Picture | Pixels:
    """Return the image that records have read: bytes, an array or an image of Pillow."""
    if isinstance(content, bytes):
        return Picture(content)
    return Pixels(content if isinstance(content, np.ndarray) else rgb(content))


def _check_options(options: SourceOptions) -> None:
    """Raise a ConfigError unless crop ranges and resampling are valid."""
    area, ratio = options.crop_area, options.crop_ratio
    if not (len(area) == 2 and 0 < area[0] <= area[1] <= 1):
        raise ConfigError(f"data.crop_area: expected two shares, 0 < low <= high <= 1, got {area}")
    if not (len(ratio) == 2 and 0 < ratio[0] <= ratio[1] < math.inf):
        raise ConfigError(
            f"data.crop_ratio: expected two of width / height, 0 < low <= high, got {ratio}"
        )
    if not 0 < options.evaluation_crop <= 1:
        raise ConfigError(
            f"data.evaluation_crop: expected a share of the shorter side above 0, at most 1, got "
            f"{options.evaluation_crop}"
        )
    if options.resampling not in get_args(Resampling):
        raise ConfigError(
            f"data.resampling: expected {' or '.join(get_args(Resampling))}, got "
            f"{options.resampling!r}"
        )
