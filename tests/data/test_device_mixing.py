"""Mixing and erasing on the device, against loops over images and pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch.data.device_mixing import erase, mix, second_labels
from largebatch.data.mixing import erased_boxes, mixtures

SHAPE = (6, 8)


@pytest.fixture
def images():
    return np.random.default_rng(0).normal(size=(40, *SHAPE, 3))


def test_a_box_of_each_image_is_erased(images):
    boxes = erased_boxes(SHAPE, 0.7, seed=3, epochs=np.zeros(40, int), ids=np.arange(40))
    expected = images.copy()
    for image, (top, left, bottom, right) in zip(expected, boxes, strict=True):
        image[top:bottom, left:right] = 0
    assert 15 < (expected != images).any(axis=(1, 2, 3)).sum() < 40
    found = erase(jnp.asarray(images, jnp.float32), jnp.asarray(boxes))
    np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options", [{"mixup": 0.5, "cutmix": 0.0}, {"mixup": 0.5, "cutmix": 1.0}, {"cutmix": 1.0}]
)
def test_images_and_targets_are_mixed_with_the_partner(images, options, dtype):
    """A dense target of each image is the mean of the labels that its pixels come from."""
    options = {"mixup": 0.0} | options
    found = mixtures(SHAPE, **options, seed=0, positions=np.arange(100, 140))
    labels, expected, target = np.arange(40), np.empty_like(images), np.zeros((40, 40))
    for row in range(40):
        partner = row + 1 if row % 2 == 0 else row - 1
        _, share, *box = found[row].astype(np.float64)
        source = np.full(SHAPE, share)
        top, left, bottom, right = map(int, box)
        source[top:bottom, left:right] = 0
        weight = source[..., None]
        expected[row] = weight * images[row] + (1 - weight) * images[partner]
        target[row, [row, partner]] = source.mean(), 1 - source.mean()
    with jax.enable_x64(dtype == "float64"):
        mixed = mix(jnp.asarray(images, dtype), jnp.asarray(found))
        others, shares = jax.device_get(second_labels(jnp.asarray(labels), jnp.asarray(found)))
    assert mixed.dtype == dtype
    tolerance = {"float32": 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=10 * tolerance)
    np.testing.assert_allclose(shares, target[labels, labels], atol=1e-6)  # stored in float32
    np.testing.assert_allclose(1 - shares, target[labels, others], atol=1e-6)


def test_a_share_of_one_keeps_the_image(images):
    kept = np.tile(np.array([1, 1, 0, 0, 0, 0], np.float32), (40, 1))
    images = jnp.asarray(images, jnp.float32)
    np.testing.assert_array_equal(mix(images, jnp.asarray(kept)), images)
