"""Turning photographs grey and grey pictures into photographs."""

import numpy as np
import pytest
from PIL import Image

from largebatch import data
from largebatch.data.photos import Photos
from largebatch.data.sources import RectangularSource
from largebatch.data.unreadable import FallibleSource, as_far_as_possible
from largebatch.errors import DataError
from largebatch.weights.evaluation.channels import to_grey, with_channels
from tests.data.test_photos import Pictures

OPTIONS = data.SourceOptions(image_size=24)


def test_luma_is_pillows():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    np.testing.assert_array_equal(
        to_grey(pixels)[..., 0], np.asarray(Image.fromarray(pixels).convert("L"))
    )
    levels = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_grey(np.stack([levels] * 3, axis=-1))[..., 0], levels)


def test_photographs_for_a_network_of_one_channel():
    photos = Photos(Pictures(6, broken=1), OPTIONS)
    grey = with_channels(photos, 1, (100.0,), (50.0,))
    assert isinstance(grey, FallibleSource)
    assert isinstance(grey, RectangularSource)
    assert (grey.image_shape, grey.mean, len(grey)) == ((24, 24, 1), (100.0,), 6)
    ids = np.arange(6)
    (images, labels), rows = as_far_as_possible(grey.read, ids)
    (colour, same), _ = as_far_as_possible(photos.read, ids)
    assert rows.tolist() == [1]
    good = ids != 1
    np.testing.assert_array_equal(images[good], to_grey(colour[good]))
    np.testing.assert_array_equal(labels, same)
    assert grey.explain(1) == photos.explain(1)
    np.testing.assert_array_equal(grey.sizes(ids[good]), photos.sizes(ids[good]))
    assert grey.describe().endswith("turned into grey")


def test_digits_for_a_network_of_three_channels():
    digits = data.open_source("digits", "validation")
    assert with_channels(digits, 1, digits.mean, digits.std) is digits
    three = with_channels(digits, 3, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0))
    images, _ = three.read_centres(np.arange(3), (8, 8))
    assert images.shape == (3, 8, 8, 3)
    for channel in range(3):
        np.testing.assert_array_equal(images[..., channel], digits.read(np.arange(3))[0][..., 0])
    with pytest.raises(DataError, match=r"^digits has pictures of 1 channels, the weights take 4"):
        with_channels(digits, 4, (0.0,) * 4, (1.0,) * 4)
