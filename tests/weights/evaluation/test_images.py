"""Conversion of channels, and image files without labels."""

import numpy as np
import pytest
from PIL import Image

from largebatch import data
from largebatch.data.dataset import Dataset, to_grey
from largebatch.errors import DataError
from tests.data.test_dataset import Pictures


def test_luma_is_pillows():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    expected = np.asarray(Image.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(to_grey(pixels)[..., 0], expected)


def test_photographs_for_a_network_of_one_channel():
    photos = Dataset(Pictures(6, broken=1), data.SourceOptions(image_size=24))
    grey = photos.with_channels(1, (100.0,), (50.0,))
    assert (grey.image_shape, grey.mean, len(grey)) == ((24, 24, 1), (100.0,), 6)
    ids = np.arange(6)
    images, labels, rows = grey.read_centres(ids)
    colour, same, _ = photos.read_centres(ids)
    assert rows.tolist() == [1]
    good = ids != 1
    np.testing.assert_array_equal(images[good], to_grey(colour[good]))
    np.testing.assert_array_equal(labels, same)
    assert grey.explain(1) == photos.explain(1)
    np.testing.assert_array_equal(grey.sizes(ids[good]), photos.sizes(ids[good]))


def test_digits_for_a_network_of_three_channels():
    digits = data.open_dataset("digits", "validation")
    assert digits.with_channels(1, digits.mean, digits.std) is digits
    three = digits.with_channels(3, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0))
    images = three.read_centres(np.arange(3), (8, 8)).images
    grey = digits.read_centres(np.arange(3)).images
    np.testing.assert_array_equal(images, np.repeat(grey, 3, axis=-1))
    with pytest.raises(DataError, match=r"4 channels.* got 1"):
        digits.with_channels(4, (0.0,) * 4, (1.0,) * 4)
