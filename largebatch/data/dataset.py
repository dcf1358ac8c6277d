"""A split as training and evaluation see it: images of one size, decoded, cropped and resized."""

import copy
import math
from typing import NamedTuple, get_args

import cv2
import numpy as np

from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.images import Picture, Pixels, Resampling, UndecodableError, picture
from largebatch.data.source import Source, SourceOptions, Split, open_source
from largebatch.errors import ConfigError, DataError

DEFAULT_SIZE = 224
# Weights of red, green and blue in luma (ITU-R BT.601) times 65,536, as in Pillow's mode L.
_LUMA = np.array([19_595, 38_470, 7_471], np.int64)
_NONE = np.empty(0, np.int64)


class Images(NamedTuple):
    """Images of one shape."""

    images: np.ndarray
    """uint8 (b, h, w, C); undefined in the corrupt rows."""
    labels: np.ndarray
    """int32 (b,)."""
    corrupt: np.ndarray = _NONE
    """int64 (k,), the rows whose image cannot be decoded, ascending."""


class Dataset:
    """A `Source` with its images decoded, cropped and resized; thread-safe.

    Image files and images of any size are *photographs*: training takes random crops, evaluation
    central ones. Arrays of one shape (`Source.image_shape`) are not cropped, only resized.

    Attributes:
        source: The images as they are stored.
        name, classes, mean, std: As of `Source`.
        image_shape: (H, W, C) of a training image.
    """

    def __init__(self, source: Source, options: SourceOptions) -> None:
        """Read nothing yet.

        Args:
            source: The images as they are stored.
            options: Size of the result, boxes and resampling.

        Raises:
            ConfigError: An option is out of range.
        """
        self.source = source
        self.name, self.classes = source.name, source.classes
        self.mean, self.std = tuple(source.mean), tuple(source.std)
        self._options = options
        self._stored = source.image_shape
        own = self._stored or (DEFAULT_SIZE, DEFAULT_SIZE, 3)
        side = options.image_size
        self.image_shape = (side, side, own[2]) if side else own
        if self._stored is None:
            _check_crop_options(options)

    def __len__(self) -> int:
        return len(self.source)

    def with_channels(
        self, channels: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> "Dataset":
        """Return the same images in grey, or with three equal channels.

        Args:
            channels: That the network takes, 1 or 3.
            mean: Mean of the network's normalization, in 0..255.
            std: Standard deviation of the network's normalization, in 0..255.

        Raises:
            DataError: The images or the network have neither 1 nor 3 channels.
        """
        has = self.image_shape[2]
        if has == channels:
            return self
        if {has, channels} != {1, 3}:
            raise DataError(
                f"{self.name}: expected images of {channels} channels, as the weights take, got "
                f"{has}; only 1 and 3 can be converted"
            )
        converted = copy.copy(self)
        converted.image_shape = (*self.image_shape[:2], channels)
        converted.mean, converted.std = mean, std
        return converted

    def read_centres(self, ids: np.ndarray, shape: tuple[int, int] | None = None) -> Images:
        """Read images as evaluation sees them; the same ids give the same bytes.

        Args:
            ids: int64 (b,), in [0, len).
            shape: Height and width; None is those of `image_shape`.

        Raises:
            DataError: An example cannot be read.
        """
        shape = shape or self.image_shape[:2]
        if self._stored is not None:
            return self._read_arrays(ids, shape)
        opened = self._open(ids)
        boxes = centre_boxes(opened.sizes, shape, self._options.evaluation_crop)
        return self._decode(opened, boxes, shape)

    def read_crops(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> Images:
        """Read images as training sees them, before `Augment`.

        A crop is chosen before decoding, which saves most of the decoder's work.

        Args:
            ids: int64 (b,), in [0, len).
            seed: Seed of the run.
            epochs: int64 (b,), the epoch of each example; the crop depends on (seed, epoch, id).
            out: uint8 (b, H, W, C), contiguous, destination of the images; None allocates it.

        Raises:
            DataError: An example cannot be read.
        """
        shape = self.image_shape[:2]
        if self._stored is not None:
            return self._read_arrays(ids, shape)
        opened = self._open(ids)
        boxes = random_boxes(
            opened.sizes,
            seed=seed,
            epochs=epochs,
            ids=ids,
            area=self._options.crop_area,
            ratio=self._options.crop_ratio,
        )
        return self._decode(opened, boxes, shape, out)

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """Return height and width of the stored images, from their headers; 1×1 if corrupt.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            int64 (b, 2).

        Raises:
            DataError: An example cannot be read.
        """
        if self._stored is not None:
            return np.full((len(ids), 2), self._stored[:2], np.int64)
        return self._open(ids).sizes

    def explain(self, example: int) -> tuple[str, str]:
        """Return the file or record of a corrupt image, and what is wrong with it.

        Raises:
            DataError: It cannot be read.
        """
        (content,), _ = self.source.read(np.array([example]))
        try:
            picture(content).pixels()
        except UndecodableError as error:
            return self.source.where(example), str(error)
        return self.source.where(example), "a part of it cannot be decoded"

    def describe(self) -> str:
        """Return one line about what was found."""
        height, width, channels = self.image_shape
        if self._stored == self.image_shape:
            return self.source.describe()
        own = self._stored[2] if self._stored else 3
        colour = "" if channels == own else ", in grey" if channels == 1 else ", in 3 channels"
        return f"{self.source.describe()}, seen at {height}×{width}{colour}"

    def _read_arrays(self, ids: np.ndarray, shape: tuple[int, int]) -> Images:
        """Read arrays of one shape."""
        found, labels = self.source.read(ids)
        images = np.asarray(found)
        if shape != images.shape[1:3]:
            stored = images
            images = np.empty((len(ids), *shape, stored.shape[3]), np.uint8)
            for image, place in zip(stored, images, strict=True):
                cv2.resize(image, shape[::-1], dst=place, interpolation=cv2.INTER_LINEAR)
        return Images(self._with_own_channels(images), labels)

    def _open(self, ids: np.ndarray) -> "_Opened":
        """Read the headers of photographs."""
        contents, labels = self.source.read(ids)
        pictures: list[Picture | Pixels | None] = []
        reasons: dict[int, str] = {}  # an exception would keep the read data alive
        for row, content in enumerate(contents):
            try:
                pictures.append(picture(content))
            except UndecodableError as error:
                pictures.append(None)
                reasons[row] = str(error)
        sizes = [(each.height, each.width) if each else (1, 1) for each in pictures]
        return _Opened(pictures, np.array(sizes, np.int64).reshape(-1, 2), labels, reasons)

    def _decode(
        self,
        opened: "_Opened",
        boxes: np.ndarray,
        shape: tuple[int, int],
        out: np.ndarray | None = None,
    ) -> Images:
        """Decode and resize a box of each photograph, int64 (b, 4)."""
        pictures, _, labels, reasons = opened
        images = np.empty((len(labels), *shape, 3), np.uint8) if out is None else out
        for row, (each, box) in enumerate(zip(pictures, boxes.tolist(), strict=True)):
            if each is None:
                continue
            try:
                each.view(tuple(box), shape, self._options.resampling, out=images[row])
            except UndecodableError as error:
                reasons[row] = str(error)
        return Images(self._with_own_channels(images), labels, np.array(sorted(reasons), np.int64))

    def _with_own_channels(self, images: np.ndarray) -> np.ndarray:
        if images.shape[-1] == self.image_shape[2]:
            return images
        return to_grey(images) if self.image_shape[2] == 1 else np.repeat(images, 3, axis=-1)


class _Opened(NamedTuple):
    """Photographs whose headers have been read."""

    pictures: list[Picture | Pixels | None]
    """None for corrupt ones."""
    sizes: np.ndarray
    """int64 (b, 2), heights and widths."""
    labels: np.ndarray
    """int32 (b,)."""
    reasons: dict[int, str]
    """By row, what is wrong with a corrupt one."""


def open_dataset(spec: str, split: Split, options: SourceOptions | None = None) -> Dataset:
    """Open one split of `data.source`; arguments and errors as of `source.open_source`."""
    options = options or SourceOptions()
    return Dataset(open_source(spec, split, options), options)


def to_grey(images: np.ndarray) -> np.ndarray:
    """Return the luma, uint8 (…, 1), of uint8 (…, 3), rounded half up."""
    return ((images @ _LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]


def _check_crop_options(options: SourceOptions) -> None:
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
