from fractions import Fraction

import jax
import numpy as np
import pytest

from largebatch.data.boxes import centre_boxes, random_boxes
from largebatch.data.decoded import stored_boxes
from largebatch.data.device_crops import crop_and_resize
from largebatch.data.images import resize
from largebatch.data.openers import open_source
from largebatch.data.sources import CroppingSource, StoredSource
from tests.data.decoded_stores import (
    CLASSES,
    OPTIONS,
    SHARDS,
    SIZE,
    contents,
    drawn,
    make,
    opened,
)


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "store")


def test_it_is_a_source(store):
    source = open_source(f"decoded:{store}", "train", OPTIONS)
    assert isinstance(source, CroppingSource)
    assert isinstance(source, StoredSource)
    assert (len(source), source.classes, source.image_shape) == (10, CLASSES, (40, 40, 3))
    assert source.stored_size == SIZE
    assert opened(store, image_size=SIZE).image_shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("split", SHARDS)
def test_stored_images_and_labels_are_those_written(store, split):
    images, labels, sizes = contents(split)
    ids = np.array([5, 0, 5, 4, len(labels) - 1, 3])
    source = opened(store, split)
    for found in (source.read_stored(ids, **drawn(ids)), source.read_stored_centres(ids, (9, 9))):
        np.testing.assert_array_equal(found[0], images[ids])
        np.testing.assert_array_equal(found[1], labels[ids])
        assert [array.dtype for array in found] == [np.uint8, np.int32, np.int32]
    np.testing.assert_array_equal(source.sizes(ids), sizes[ids])


@pytest.mark.parametrize("resampling", ["linear", "antialias"])
def test_crops_and_centres_are_their_boxes_resized(store, resampling):
    images, labels, sizes = contents("train")
    ids = np.array([9, 2, 7, 2])
    source = opened(store, resampling=resampling, crop_area=(0.3, 0.5), crop_ratio=(0.5, 0.6))
    random = random_boxes(sizes[ids], **drawn(ids), ids=ids, area=(0.3, 0.5), ratio=(0.5, 0.6))
    for shape, boxes, found in (
        ((40, 40), random, source.read_crops(ids, **drawn(ids))),
        ((40, 40), centre_boxes(sizes[ids], (40, 40), 0.8), source.read(ids)),
        ((30, 50), centre_boxes(sizes[ids], (30, 50), 0.8), source.read_centres(ids, (30, 50))),
    ):
        expected = [
            resize(image[top : top + height, left : left + width], shape, resampling)
            for image, (top, left, height, width) in zip(
                images[ids], stored_boxes(boxes, sizes[ids], SIZE), strict=True
            )
        ]
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], labels[ids])


@pytest.mark.parametrize("resampling", ["linear", "antialias"])
def test_the_device_makes_the_same_crops_to_one_grey_level(store, resampling):
    source = opened(store, resampling=resampling)
    jitted = jax.jit(crop_and_resize, static_argnames=("shape", "resampling"))
    ids = np.arange(len(source))
    for shape, host, stored in (
        ((40, 40), source.read_crops(ids, **drawn(ids)), source.read_stored(ids, **drawn(ids))),
        ((40, 40), source.read(ids), source.read_stored_centres(ids, (40, 40))),
        ((64, 40), source.read_centres(ids, (64, 40)), source.read_stored_centres(ids, (64, 40))),
    ):
        images, labels, boxes = stored
        device = jitted(images, boxes, np.zeros(len(ids), bool), shape, resampling=resampling)
        np.testing.assert_array_equal(labels, host[1])
        # One for the host libraries' fixed-point arithmetic, see crop_and_resize.
        assert np.abs(np.asarray(device) - host[0]).max() <= 1


def test_boxes_fall_on_the_nearest_stored_pixels():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 700, (500, 2))
    sides = rng.integers(1, sizes + 1)
    corners = rng.integers(0, sizes - sides + 1)
    boxes = np.concatenate([corners, sides], axis=1)
    found = stored_boxes(boxes, sizes, SIZE)
    assert found.dtype == np.int64
    assert found[:, :2].min() >= 0
    assert found[:, 2:].min() == 1
    assert (found[:, :2] + found[:, 2:]).max() == SIZE
    for box, stored, size in zip(boxes.tolist(), found.tolist(), sizes.tolist(), strict=True):
        for axis in range(2):
            first, last = (
                Fraction(edge * SIZE, size[axis]) for edge in (box[axis], box[axis] + box[axis + 2])
            )
            begin, end = stored[axis], stored[axis] + stored[axis + 2]
            if abs(first - begin) > Fraction(1, 2) or abs(last - end) > Fraction(1, 2):
                assert end == begin + 1  # the box vanished between two edges
                assert last - first < 1
                assert begin - Fraction(1, 2) <= first <= end
