"""`decoded:PATH`: images of a decoded store, cropped on the host or on the device."""

from pathlib import Path

import numpy as np

from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.decoded_reader import StoredSplit
from largebatch.data.decoded_store import INDEX_FILE, Index, read_index
from largebatch.data.images import resize
from largebatch.data.photos import DEFAULT_SIZE, MEAN, STD, check_crop_options
from largebatch.data.sources import SourceOptions, check_sizes
from largebatch.errors import DataError
from largebatch.files import folder_within, holds


def stored_boxes(boxes: np.ndarray, sizes: np.ndarray, size: int) -> np.ndarray:
    """Map boxes of images to the stored pixels.

    An edge at x of an image of extent X falls on x·S/X, rounded half up: it moves by half a stored
    pixel at most, and boxes that touch still do. Where both edges fall on the same place, the box
    is the one pixel after it, or the last pixel of all.

    Args:
        boxes: int64 (b, 4): top, left, height, width, within the image and not empty.
        sizes: int64 (b, 2): height and width of the images.
        size: S, pixels a side of what is stored.

    Returns:
        int64 (b, 4): top, left, height, width, within S×S and at least 1×1.
    """
    edges = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
    first, last = (2 * edges * size + sizes) // (2 * sizes)
    first = np.minimum(first, size - 1)
    return np.concatenate([first, np.maximum(last - first, 1)], axis=1)


class DecodedSource:
    """One split of a decoded store, a `CroppingSource`.

    Boxes are chosen in the coordinates of the original images and mapped to the stored pixels by
    `stored_boxes`, so that a crop has its true content and aspect. They are applied here (`read`,
    `read_centres`, `read_crops`) or returned with the whole images (`read_stored`,
    `read_stored_centres`), from which `device_crops.crop_and_resize` takes the same crops to one
    grey level.

    Attributes:
        name, classes, image_shape, mean, std: As for `Source`; mean and std are those of ImageNet.
        stored_size: S, pixels a side of the images that `read_stored` delivers.
    """

    mean = MEAN
    std = STD

    def __init__(self, spec: str, split: str, options: SourceOptions) -> None:
        check_crop_options(options)
        self._arguments = (spec, split, options)
        self._options = options
        self._split = split
        self._directory = Path(spec.partition(":")[2]).expanduser().absolute()
        index = _index(self._directory)
        if split not in index.splits:
            raise DataError(
                f"{self._directory} has no {split} images, only {' and '.join(index.splits)}; "
                "prepare that split too"
            )
        examples = sum(shard.examples for shard in index.splits.get("train", ()))
        check_sizes(spec, options, examples=examples, classes=len(index.classes))
        self._shards = index.splits[split]
        self._stored = StoredSplit(self._directory, index, split)
        self.stored_size = index.size
        self.name = spec
        self.classes = index.classes
        side = options.image_size or DEFAULT_SIZE
        self.image_shape = (side, side, 3)
        if side > index.size:
            raise DataError(
                f"{self._directory} holds images of {index.size}×{index.size}, smaller than "
                f"data.image_size={side}{'' if options.image_size else ' (the default)'}; set "
                f"data.image_size={index.size} or less, or prepare a store with --size {side}"
            )

    def __len__(self) -> int:
        return len(self._stored.labels)

    def class_counts(self) -> list[int]:
        return np.bincount(self._stored.labels, minlength=len(self.classes)).tolist()

    def __reduce__(self) -> tuple:  # open files cannot be pickled
        return DecodedSource, self._arguments

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the central crop of each image; see `Source.read`."""
        return self.read_centres(ids, self.image_shape[:2])

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._views(ids, self._centres(ids, shape), shape), self._stored.labels[ids]

    def read_crops(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read a random crop of each image; see `CroppingSource.read_crops`."""
        boxes = self._crops(ids, seed, epochs)
        return self._views(ids, boxes, self.image_shape[:2], out), self._stored.labels[ids]

    def read_stored(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._whole(ids, self._crops(ids, seed, epochs), out)

    def read_stored_centres(
        self, ids: np.ndarray, shape: tuple[int, int], out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._whole(ids, self._centres(ids, shape), out)

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """Return the sizes of the original images; see `RectangularSource.sizes`."""
        return self._stored.sizes[ids].astype(np.int64)

    def marks(self) -> tuple[bytes, ...]:
        """Return the checksums of the files of images."""
        return tuple(shard.sha256.encode() for shard in self._shards)

    def describe(self) -> str:
        height, width = self.image_shape[:2]
        side = self.stored_size
        return (
            f"decoded: {len(self):,} {self._split} images of {side}×{side}×3 in {self._directory}, "
            f"{len(self.classes):,} classes, seen at {height}×{width}"
        )

    def _crops(self, ids: np.ndarray, seed: int, epochs: np.ndarray) -> np.ndarray:
        sizes = self.sizes(ids)
        boxes = random_boxes(
            sizes,
            seed=seed,
            epochs=epochs,
            ids=ids,
            area=self._options.crop_area,
            ratio=self._options.crop_ratio,
        )
        return stored_boxes(boxes, sizes, self.stored_size)

    def _centres(self, ids: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        sizes = self.sizes(ids)
        boxes = centre_boxes(sizes, shape, self._options.evaluation_crop)
        return stored_boxes(boxes, sizes, self.stored_size)

    def _views(
        self,
        ids: np.ndarray,
        boxes: np.ndarray,
        shape: tuple[int, int],
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        images = np.empty((len(ids), *shape, 3), np.uint8) if out is None else out
        for image, pixels in zip(images, self._stored.boxes(ids, boxes), strict=True):
            resize(pixels, shape, self._options.resampling, out=image)
        return images

    def _whole(
        self, ids: np.ndarray, boxes: np.ndarray, out: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._stored.images(ids, out), self._stored.labels[ids], boxes.astype(np.int32)


def _index(directory: Path) -> Index:
    """Read the index."""
    if not (directory / INDEX_FILE).exists():
        inner = folder_within(str(directory), lambda path: Path(path, INDEX_FILE).is_file())
        raise DataError(
            f"data.source: {directory / INDEX_FILE} is absent: {directory} {holds(directory)}; use "
            + (f"decoded:{inner}" if inner else "the directory of a store")
        )
    return read_index(directory)


def open_decoded(spec: str, split: str, options: SourceOptions) -> DecodedSource:
    """Open a split of a decoded store.

    Args:
        spec: `decoded:PATH`.
        split: `train` or `validation`.
        options: Size of the result (0 is 224), boxes and resampling; `examples` and `classes` are
            those of the store, or 0.

    Returns:
        The split; it can be pickled.

    Raises:
        ConfigError: An option is out of range.
        DataError: The store is absent, unfinished, damaged or not of the size asked for.
    """
    if not spec.partition(":")[2]:
        raise DataError(f"data.source: {spec!r} has no directory; write decoded:PATH")
    return DecodedSource(spec, split, options)
