from fractions import Fraction

import jax
import numpy as np
import pytest

from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.decoded import stored_boxes
from largebatch.data.decoded_store import write_index, write_shard
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
    assert source.describe() == (
        f"decoded: 10 train images of 48×48×3 in {store}, 3 classes, seen at 40×40"
    )
    np.testing.assert_allclose(source.mean, [123.675, 116.28, 103.53])
    np.testing.assert_allclose(source.std, [58.395, 57.12, 57.375])


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


def test_a_squeezed_picture_shows_what_the_picture_shows(tmp_path):
    # A plane of grey, 2 levels a pixel downwards and 1 to the right: places can be read off it.
    height, width = 90, 60
    plane = 2 * np.arange(height)[:, None] + np.arange(width)
    picture = np.repeat(plane[..., None], 3, axis=2).astype(np.uint8)
    squeezed = resize(picture, (SIZE, SIZE), "antialias")
    facts = write_shard(tmp_path, "train", 0, 1, [squeezed], [0], [(height, width)])
    write_index(tmp_path, size=SIZE, classes=CLASSES, shards={"train": [facts]})
    source = opened(tmp_path)
    ids = np.zeros(50, np.int64)
    draw = {"seed": 0, "epochs": np.arange(50)}
    crops, _ = source.read_crops(ids, **draw)
    boxes = random_boxes(np.tile([height, width], (50, 1)), **draw, ids=ids)
    expected = np.stack([resize(picture[t : t + h, x : x + w], (40, 40), "linear")
                         for t, x, h, w in boxes])  # fmt: skip
    # Edges move by half a stored pixel at most, 0.94 rows and 0.63 columns of the image, so grey
    # by 2·0.94 + 0.63; the blur of squeezing moves the border, and 8 bits round, by one each.
    assert np.abs(crops.astype(int) - expected).max() <= 4


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


def test_some_boxes_by_hand():
    sizes = np.array([[96, 480], [96, 480], [480, 480], [480, 480], [97, 1]])
    boxes = np.array(
        [[0, 0, 96, 480], [1, 15, 5, 20], [2, 478, 1, 1], [475, 4, 5, 2], [96, 0, 1, 1]]
    )
    # 1·48/96 = 0.5 up to 1; 6·48/96 = 3; 15/10 = 1.5 up to 2; 35/10 = 3.5 up to 4; and so on.
    expected = [[0, 0, 48, 48], [1, 2, 2, 2], [0, 47, 1, 1], [47, 0, 1, 1], [47, 0, 1, 48]]
    np.testing.assert_array_equal(stored_boxes(boxes, sizes, 48), expected)
