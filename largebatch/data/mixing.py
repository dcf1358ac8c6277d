"""Random boxes to erase, and shares and boxes of mixed images; arrays that the device applies.

Erasing is a function of (seed, epoch, example id). Mixing is a function of the seed and the pair,
which is the sample position divided by two, so that both images of a pair agree wherever their
rows are read.
"""

import numpy as np

from largebatch.data.randomness import halves, mix, purpose, uniform

_ATTEMPTS = 10
_AREA, _ASPECT = (0.02, 0.33), (0.3, 3.3)


def erased_boxes(
    shape: tuple[int, int], probability: float, *, seed: int, epochs: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Return the box of each image that is erased, a function of (seed, epoch, id).

    Random erasing (Zhong et al. 2020, arXiv 1708.04896) as torchvision defines it: with the given
    probability a box with an area uniform in 0.02 to 0.33 of the image's and an aspect (height /
    width) log-uniform in 0.3 to 3.3; ten attempts at a box smaller than the image, then none.

    Args:
        shape: Height and width of the images.
        probability: Probability of erasing, in [0, 1).
        seed: Seed of the run.
        epochs: int64 (b,).
        ids: int64 (b,), the example index of each image.

    Returns:
        int32 (b, 4): top, left, bottom, right; zeros where nothing is erased.
    """
    height, width = shape
    boxes = np.zeros((len(ids), 4), np.int32)
    open_ = np.flatnonzero(uniform(purpose("erase"), seed, epochs, ids) < probability)
    for attempt in range(_ATTEMPTS):
        keys = seed, attempt, epochs[open_], ids[open_]
        first, second = halves(mix(purpose("erase.shape"), *keys))
        area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * first)
        aspect = np.exp(np.log(_ASPECT[0]) + np.log(_ASPECT[1] / _ASPECT[0]) * second)
        h = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        w = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        first, second = halves(mix(purpose("erase.place"), *keys))
        fits = (h < height) & (w < width)
        top = (first * (height - h + 1)).astype(np.int64)
        left = (second * (width - w + 1)).astype(np.int64)
        found = np.stack([top, left, top + h, left + w], axis=1)
        boxes[open_[fits]] = found[fits]
        open_ = open_[~fits]
    return boxes


def mixtures(
    shape: tuple[int, int],
    *,
    mixup: float,
    cutmix: float,
    seed: int,
    positions: np.ndarray,
) -> np.ndarray:
    """Return how each image is mixed with that of the other sample position of its pair.

    λ is drawn from Beta(α, α), as the quantile of a uniform number. Mixup adds λ of the image and
    1 − λ of the partner. CutMix replaces a box with sides of √(1 − λ) of the image's around a
    uniform centre, cut off at the edges; the share of the target is then that of the visible area
    (Yun et al. 2019, arXiv 1905.04899, and ``cutmix_bbox_and_lam`` of timm). timm draws λ for a
    batch by default, here as in its mode ``pair``.

    Args:
        shape: Height and width of the images.
        mixup: α of mixup; 0 for none.
        cutmix: α of CutMix; 0 for none.
        seed: Seed of the run.
        positions: int64 (b,), sample positions.

    Returns:
        float32 (b, 6): share of the image in its target, share of the image in a pixel outside the
        box, and the box of the partner: top, left, bottom, right, which are zeros for mixup.
    """
    from scipy.special import betaincinv  # only some runs need it

    height, width = shape
    keys = seed, positions // 2
    cuts = np.full(len(positions), cutmix > 0)
    if mixup and cutmix:
        cuts = uniform(purpose("mixing.kind"), *keys) < 0.5
    quantile = uniform(purpose("mixing.share"), *keys)
    share = np.ones(len(positions))
    for alpha, rows in ((mixup, ~cuts), (cutmix, cuts)):
        if alpha:
            share[rows] = betaincinv(alpha, alpha, quantile[rows])
    first, second = halves(mix(purpose("mixing.centre"), *keys))
    half = 0.5 * np.sqrt(1 - share)
    edges = []
    for centre, side in ((first, height), (second, width)):
        middle, reach = np.floor(centre * side), np.floor(half * side)
        edges.append((np.maximum(middle - reach, 0), np.minimum(middle + reach, side)))
    (top, bottom), (left, right) = edges
    area = (bottom - top) * (right - left) / (height * width)
    boxes = np.where(cuts[:, None], np.stack([top, left, bottom, right], axis=1), 0)
    of_target = np.where(cuts, 1 - area, share)
    return np.column_stack([of_target, np.where(cuts, 1, share), boxes]).astype(np.float32)
