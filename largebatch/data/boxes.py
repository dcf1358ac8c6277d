"""Crop boxes: random ones for training, central ones for evaluation."""

import numpy as np

from largebatch.data.randomness import mix, purpose

_ATTEMPTS = 10


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
        first, second = _halves("crop.shape", seed, attempt, epochs[open_], ids[open_])
        share = area[0] + (area[1] - area[0]) * first
        aspect = np.exp(np.log(ratio[0]) + np.log(ratio[1] / ratio[0]) * second)
        pixels = share * height[open_] * width[open_]
        h = np.rint(np.sqrt(pixels / aspect)).astype(np.int64)
        w = np.rint(np.sqrt(pixels * aspect)).astype(np.int64)
        fits = (h > 0) & (h <= height[open_]) & (w > 0) & (w <= width[open_])
        chosen, h, w = open_[fits], h[fits], w[fits]
        first, second = _halves("crop.place", seed, attempt, epochs[chosen], ids[chosen])
        top = (first * (height[chosen] - h + 1)).astype(np.int64)
        left = (second * (width[chosen] - w + 1)).astype(np.int64)
        boxes[chosen] = np.stack([top, left, h, w], axis=1)
        open_ = open_[~fits]
        if not open_.size:
            break
    return boxes


def _halves(name: str, *keys: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two independent uniform numbers in [0, 1), on the grid of 2**-32, from one hash."""
    bits = mix(purpose(name), *keys)
    return (bits >> np.uint64(32)) * 2.0**-32, (bits & np.uint64(0xFFFFFFFF)) * 2.0**-32


def _largest_centred(sizes: np.ndarray, ratio: tuple[float, float]) -> np.ndarray:
    """Return the largest central box of each image with an aspect within `ratio`."""
    height, width = sizes[:, 0], sizes[:, 1]
    h = np.minimum(height, np.rint(width / ratio[0]).astype(np.int64))
    w = np.minimum(width, np.rint(height * ratio[1]).astype(np.int64))
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
