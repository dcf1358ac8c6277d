"""Random translation and horizontal flip, a function of (seed, epoch, example id) alone."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from largebatch.data.randomness import mix, purpose
from largebatch.errors import ConfigError


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images.

    Attributes:
        shift: Greatest translation in pixels, either way and on either axis; every displacement
            is equally likely, and zeros fill what it uncovers.
        flip: Whether to mirror each image with probability 1/2.

    Raises:
        ConfigError: `shift` is negative or, when called, not less than the side of the images.
    """

    shift: int = 0
    flip: bool = False

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
        for row in np.flatnonzero(self.flips(seed=seed, epochs=epochs, ids=ids)):
            cv2.flip(images[row], 1, dst=images[row])
        if self.shift:
            places = np.uint64(2 * self.shift + 1)
            top = mix(purpose("augment.top"), seed, epochs, ids) % places
            left = mix(purpose("augment.left"), seed, epochs, ids) % places
            images = _window(images, top.astype(np.int64), left.astype(np.int64), self.shift)
        return images

    def flips(self, *, seed: int, epochs: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return which images are mirrored.

        Args:
            seed: Seed of the run.
            epochs: int64 (b,).
            ids: int64 (b,).

        Returns:
            bool (b,).
        """
        if not self.flip:
            return np.zeros(len(ids), bool)
        return (mix(purpose("augment.flip"), seed, epochs, ids) & np.uint64(1)).astype(bool)


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
