"""Mixtures and erased boxes: their distributions, and the device against loops over images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from largebatch.data.device_mixing import mix, second_labels
from largebatch.data.mixing import erased_boxes, mixtures

SHAPE = (30, 40)
COUNT = 20_000


def drawn(mixup=0.0, cutmix=0.0, seed=1, positions=None):
    positions = np.arange(COUNT) if positions is None else positions
    options = {"mixup": mixup, "cutmix": cutmix}
    return mixtures(SHAPE, **options, seed=seed, positions=positions)


def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def test_pairs_agree_and_depend_on_seed_and_position_alone():
    options = {"mixup": 0.1, "cutmix": 1.0}
    whole = drawn(**options)
    assert (whole.dtype, whole.shape) == (np.float32, (COUNT, 6))
    np.testing.assert_array_equal(whole[::2], whole[1::2])
    order = np.random.default_rng(0).permutation(COUNT)
    np.testing.assert_array_equal(drawn(**options, positions=order), whole[order])
    part = drawn(**options, positions=np.arange(7, 12))
    np.testing.assert_array_equal(part, whole[7:12])
    assert (drawn(**options, seed=2) != whole).any(axis=1).mean() > 0.9
    later = drawn(**options, positions=np.arange(COUNT) + COUNT)
    assert (later != whole).any(axis=1).mean() > 0.9


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_shares_of_mixup_follow_the_beta_distribution(alpha):
    found = drawn(mixup=alpha)[::2]
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert not found[:, 2:].any()
    # In quantiles that float32 can tell from 0 and 1.
    for x in (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999):
        expected = stats.beta(alpha, alpha).cdf(x)
        noise = np.sqrt(expected * (1 - expected) / len(found))
        assert abs((found[:, 0] < x).mean() - expected) < 5 * noise


def test_boxes_of_cutmix_cover_the_share_of_the_partner():
    """Uncut boxes have the area (1 − λ)·H·W to one pixel a side, and cut ones their own."""
    found = drawn(cutmix=1.0)[::2].astype(np.float64)
    top, left, bottom, right = boxes = found[:, 2:].T
    assert (found[:, 1] == 1).all()
    np.testing.assert_allclose(found[:, 0], 1 - area(boxes.T) / 1200, atol=1e-6)  # float32
    assert boxes.min() == 0
    assert (bottom.max(), right.max()) == SHAPE
    inner = (top > 0) & (left > 0) & (bottom < 30) & (right < 40)
    assert inner.sum() > 500
    height, width = (bottom - top)[inner], (right - left)[inner]
    # Both sides are √(1 − λ) of the image's, rounded down to an even number.
    assert (np.abs(height / 30 - width / 40) < 2 / 30 + 1e-9).all()
    # √(1 − λ) of uniform λ has the density 2r; the inner boxes weigh it by (1 − r)².
    shares = width / 40
    assert abs(shares.mean() - 0.4) < 0.05
    centres = (top + bottom)[inner & (bottom - top < 6)] / 2
    assert abs(centres.mean() - 15) < 1


def erased(probability, count):
    return erased_boxes(
        SHAPE, probability, seed=1, epochs=np.zeros(count, int), ids=np.arange(count)
    )


def test_erased_boxes_are_those_of_the_definition():
    boxes = erased(0.25, COUNT)
    assert not erased(0.0, COUNT).any()
    chosen = boxes[area(boxes) > 0].astype(np.float64)
    assert abs(len(chosen) / COUNT - 0.25) < 5 * np.sqrt(0.25 * 0.75 / COUNT)
    assert (chosen[:, :2] >= 0).all()
    assert (chosen[:, 2:] <= SHAPE).all()
    height, width = (chosen[:, 2:] - chosen[:, :2]).T
    assert height.max() < 30
    assert width.max() < 40
    share = height * width / 1200
    assert 0.01 < share.min() < 0.03
    assert 0.31 < share.max() < 0.36
    # Rounding changes sides of 3 pixels by a sixth.
    aspect = height / width
    assert 0.3 / 1.4 < aspect.min() < 0.5
    assert 2 < aspect.max() < 3.3 * 1.4
    large = share > 0.1
    assert abs(np.log(aspect[large & (np.abs(np.log(aspect)) < 0.5)]).mean()) < 0.03
    assert abs((chosen[:, 0] / (30 - height)).mean() - 0.5) < 0.02
    assert abs((chosen[:, 1] / (40 - width)).mean() - 0.5) < 0.02


def test_values_are_golden():
    """A new release must not change the images of a run that is resumed."""
    found = drawn(mixup=0.2, cutmix=1.0, positions=np.array([0, 2, 14, 18]))
    np.testing.assert_allclose(found, GOLDEN_MIXTURES, rtol=1e-6)
    np.testing.assert_array_equal(erased(0.5, 6), GOLDEN_ERASED)


GOLDEN_MIXTURES = [
    [0.6166667, 1, 2, 0, 22, 23],
    [0.84, 1, 17, 23, 29, 39],
    [0.2629045, 0.2629045, 0, 0, 0, 0],
    [0.941517, 0.941517, 0, 0, 0, 0],
]
GOLDEN_ERASED = [
    *([0, 0, 0, 0], [8, 21, 19, 35], [0, 0, 0, 0]),
    *([0, 0, 0, 0], [5, 15, 17, 35], [0, 0, 0, 0]),
]


# ---- on the device

SMALL = (6, 8)


@pytest.fixture
def images():
    return np.random.default_rng(0).normal(size=(40, *SMALL, 3))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_images_and_targets_are_mixed_with_the_partner(images, dtype, tolerance):
    """A dense target of each image is the mean of the labels that its pixels come from."""
    found = mixtures(SMALL, mixup=0.5, cutmix=1.0, seed=0, positions=np.arange(100, 140))
    labels, expected, target = np.arange(40), np.empty_like(images), np.zeros((40, 40))
    for row in range(40):
        partner = row + 1 if row % 2 == 0 else row - 1
        _, share, *box = found[row].astype(np.float64)
        source = np.full(SMALL, share)
        top, left, bottom, right = map(int, box)
        source[top:bottom, left:right] = 0
        weight = source[..., None]
        expected[row] = weight * images[row] + (1 - weight) * images[partner]
        target[row, [row, partner]] = source.mean(), 1 - source.mean()
    with jax.enable_x64(dtype == "float64"):
        mixed = mix(jnp.asarray(images, dtype), jnp.asarray(found))
        others, shares = jax.device_get(second_labels(jnp.asarray(labels), jnp.asarray(found)))
    assert mixed.dtype == dtype
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(shares, target[labels, labels], atol=1e-6)  # stored in float32
    np.testing.assert_allclose(1 - shares, target[labels, others], atol=1e-6)


def test_a_share_of_one_keeps_the_image(images):
    kept = np.tile(np.array([1, 1, 0, 0, 0, 0], np.float32), (40, 1))
    images = jnp.asarray(images, jnp.float32)
    np.testing.assert_array_equal(mix(images, jnp.asarray(kept)), images)
