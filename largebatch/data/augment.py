"""Random and central crop boxes, and the augmentation of cropped images.

Each choice is a function of (seed, epoch, example id), or of the sample position where images are
mixed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from largebatch.data.mixing import erased_boxes, mixtures
from largebatch.data.randomness import halves, mix, purpose
from largebatch.errors import ConfigError

if TYPE_CHECKING:
    from largebatch.data.policies import Policy  # brings Pillow, which few runs need here

_ATTEMPTS = 10


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images.

    Attributes:
        shift: Greatest translation in pixels, either way and on either axis; every displacement
            is equally likely, and zeros fill what it uncovers.
        flip: Whether to mirror each image with probability 1/2.
        policy: Random operations after the flip; None for none.
        erase: Probability of erasing a box (`mixing.erased_boxes`); the device erases it.
        mixup: α of mixup (`mixing.mixtures`); the device mixes the images.
        cutmix: α of CutMix; likewise.

    Raises:
        ConfigError: `shift` is negative or, when called, not less than the side of the images.
    """

    shift: int = 0
    flip: bool = False
    policy: "Policy | None" = None
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ConfigError(f"data.shift: expected 0 or more pixels, got {self.shift}")

    def __call__(
        self, images: np.ndarray, *, seed: int, epochs: np.ndarray, ids: np.ndarray
    ) -> np.ndarray:
        """Augment each image, a function of (seed, epoch, id).

        Args:
            images: uint8 (b, H, W, C); may be overwritten.
            seed: Seed of the run.
            epochs: int64 (b,).
            ids: int64 (b,).

        Returns:
            uint8 (b, H, W, C); `images` itself if nothing changes.
        """
        if self.flip:
            mirrored = mix(purpose("augment.flip"), seed, epochs, ids) & np.uint64(1)
            for row in np.flatnonzero(mirrored):
                cv2.flip(images[row], 1, dst=images[row])
        if self.shift:
            places = np.uint64(2 * self.shift + 1)
            top = mix(purpose("augment.top"), seed, epochs, ids) % places
            left = mix(purpose("augment.left"), seed, epochs, ids) % places
            images = _window(images, top.astype(np.int64), left.astype(np.int64), self.shift)
        if self.policy is not None:
            images = self.policy(images, seed=seed, epochs=epochs, ids=ids)
        return images

    @property
    def mixes(self) -> bool:
        """Whether pairs of images are mixed."""
        return self.mixup > 0 or self.cutmix > 0

    def for_device(
        self,
        shape: tuple[int, int],
        *,
        seed: int,
        positions: np.ndarray,
        epochs: np.ndarray,
        ids: np.ndarray,
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return what the device erases and mixes.

        Args:
            shape: Height and width of the images.
            seed: Seed of the run.
            positions: int64 (b,), sample positions.
            epochs: int64 (b,).
            ids: int64 (b,).

        Returns:
            Boxes int32 (b, 4), None if nothing is erased; and mixtures float32 (b, 6), None if
            nothing is mixed.
        """
        boxes = shares = None
        if self.erase:
            boxes = erased_boxes(shape, self.erase, seed=seed, epochs=epochs, ids=ids)
        if self.mixes:
            shares = mixtures(
                shape, mixup=self.mixup, cutmix=self.cutmix, seed=seed, positions=positions
            )
        return boxes, shares


def _window(images: np.ndarray, top: np.ndarray, left: np.ndarray, shift: int) -> np.ndarray:
    """Return the window at (top, left), in 0..2·shift, of each zero-padded image."""
    batch, height, width, channels = images.shape
    if shift >= min(height, width):
        raise ConfigError(
            f"data.shift: expected at most {min(height, width) - 1} for images of "
            f"{height}×{width}, got {shift}"
        )
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    # Pixels and channels as one axis: the gather then copies whole rows.
    flat = padded.reshape(batch, height + 2 * shift, -1)
    windows = sliding_window_view(flat, (height, width * channels), axis=(1, 2))
    return windows[np.arange(batch), top, left * channels].reshape(images.shape)


def random_boxes(
    sizes: np.ndarray,
    *,
    seed: int,
    epochs: np.ndarray,
    ids: np.ndarray,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:
    """Return a box of random area, aspect and place in each image, a function of (seed, epoch, id).

    The Inception crop (Szegedy et al. 2015, arXiv 1409.4842, section 6) as torchvision defines it:
    the area is uniform in `area` times the image's, the aspect log-uniform in `ratio`; after ten
    boxes that do not fit, the largest centred box within `ratio`.

    Args:
        sizes: int64 (b, 2), height and width of each image.
        seed: Seed of the run.
        epochs: int64 (b,).
        ids: int64 (b,), the example index of each image.
        area: Least and greatest share of the image's area.
        ratio: Least and greatest width / height.

    Returns:
        int64 (b, 4): top, left, height, width in pixels, within the image.
    """
    height, width = sizes[:, 0], sizes[:, 1]
    boxes = _largest_centred(sizes, ratio)
    open_ = np.arange(len(sizes))
    for attempt in range(_ATTEMPTS):
        first, second = halves(mix(purpose("crop.shape"), seed, attempt, epochs[open_], ids[open_]))
        share = area[0] + (area[1] - area[0]) * first
        aspect = np.exp(np.log(ratio[0]) + np.log(ratio[1] / ratio[0]) * second)
        pixels = share * height[open_] * width[open_]
        h = np.rint(np.sqrt(pixels / aspect)).astype(np.int64)
        w = np.rint(np.sqrt(pixels * aspect)).astype(np.int64)
        fits = (h > 0) & (h <= height[open_]) & (w > 0) & (w <= width[open_])
        chosen, h, w = open_[fits], h[fits], w[fits]
        first, second = halves(
            mix(purpose("crop.place"), seed, attempt, epochs[chosen], ids[chosen])
        )
        top = (first * (height[chosen] - h + 1)).astype(np.int64)
        left = (second * (width[chosen] - w + 1)).astype(np.int64)
        boxes[chosen] = np.stack([top, left, h, w], axis=1)
        open_ = open_[~fits]
        if not open_.size:
            break
    return boxes


def _largest_centred(sizes: np.ndarray, ratio: tuple[float, float]) -> np.ndarray:
    """Return the largest central box of each image with an aspect within `ratio`."""
    height, width = sizes[:, 0], sizes[:, 1]
    h = np.clip(np.rint(width / ratio[0]).astype(np.int64), 1, height)
    w = np.clip(np.rint(height * ratio[1]).astype(np.int64), 1, width)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], axis=1)


def centre_boxes(sizes: np.ndarray, shape: tuple[int, int], fraction: float) -> np.ndarray:
    """Return the central box of each image with the aspect of `shape`.

    Resizing this box to `shape` is the usual "shorter side to 256, centre 224" at a fraction of
    0.875, without computing the discarded margin.

    Args:
        sizes: int64 (b, 2), height and width of each image.
        shape: Height and width that the box will be resized to.
        fraction: Share of the largest such box's side that is kept, in (0, 1].

    Returns:
        int64 (b, 4): top, left, height, width in pixels, within the image.
    """
    # Pixels of the image for each pixel of the result.
    scale = (sizes / np.asarray(shape)).min(axis=1) * fraction
    sides = np.maximum(1, np.rint(scale[:, None] * shape)).astype(np.int64)
    sides = np.minimum(sides, sizes)
    return np.concatenate([(sizes - sides) // 2, sides], axis=1)
