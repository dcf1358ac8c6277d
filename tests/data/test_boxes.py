import numpy as np
import pytest

from largebatch.data.augment import centre_boxes, random_boxes

IDS = np.arange(4000)
EPOCHS = np.zeros(4000, np.int64)


def sizes_of(height, width, count=4000):
    return np.tile(np.array([height, width], np.int64), (count, 1))


def inside(boxes, sizes):
    top, left, height, width = boxes.T
    return (
        (top >= 0)
        & (left >= 0)
        & (height >= 1)
        & (width >= 1)
        & (top + height <= sizes[:, 0])
        & (left + width <= sizes[:, 1])
    )


@pytest.mark.parametrize("shape", [(375, 500), (1, 1), (2, 900), (3000, 17)])
def test_boxes_lie_within_the_image(shape):
    sizes = sizes_of(*shape)
    assert inside(random_boxes(sizes, seed=0, epochs=EPOCHS, ids=IDS), sizes).all()


def test_area_aspect_and_place_are_distributed_as_stated():
    sizes = sizes_of(2000, 2000)
    top, left, height, width = random_boxes(
        sizes, seed=1, epochs=EPOCHS, ids=IDS, area=(0.1, 0.5), ratio=(0.8, 1.25)
    ).T
    # 4,000 uniform draws: each mean within 5 standard errors of range / sqrt(12 · 4000).
    share = height * width / 4e6
    assert abs(share.mean() - 0.3) < 5 * 0.4 / np.sqrt(48_000)
    assert share.min() > 0.099  # rounding moves an edge by half a pixel
    assert share.max() < 0.501
    aspect = np.log(width / height)
    assert abs(aspect.mean()) < 5 * 2 * np.log(1.25) / np.sqrt(48_000)
    assert np.abs(aspect).max() < np.log(1.25) + 2e-3
    for place in (top / (2000 - height), left / (2000 - width)):
        assert abs(place.mean() - 0.5) < 5 / np.sqrt(48_000)
        assert place.min() < 0.01
        assert place.max() > 0.99
    assert abs(np.corrcoef(top / (2000 - height), share)[0, 1]) < 5 / np.sqrt(4000)


def test_boxes_depend_on_seed_epoch_and_id_and_on_nothing_else():
    sizes = np.random.default_rng(0).integers(300, 600, (4000, 2))
    whole = random_boxes(sizes, seed=3, epochs=EPOCHS, ids=IDS)
    part = random_boxes(sizes[7:9], seed=3, epochs=EPOCHS[7:9], ids=IDS[7:9])
    np.testing.assert_array_equal(part, whole[7:9])
    for change in ({"seed": 4}, {"epochs": EPOCHS + 1}, {"ids": IDS + 4000}):
        drawn = {"seed": 3, "epochs": EPOCHS, "ids": IDS} | change
        assert (random_boxes(sizes, **drawn) == whole).all(1).mean() < 0.01


def test_where_no_box_fits_it_is_the_largest_centred_one_of_that_aspect():
    # No box of a tenth of the area and an aspect of 1 fits into an image of 10×2000.
    sizes = np.array([[10, 2000], [2000, 10]])
    boxes = random_boxes(
        sizes, seed=0, epochs=EPOCHS[:2], ids=IDS[:2], area=(0.1, 1.0), ratio=(1.0, 1.0)
    )
    assert boxes.tolist() == [[0, 995, 10, 10], [995, 0, 10, 10]]


def test_boxes_are_pinned():
    sizes = np.array([[375, 500], [500, 333], [64, 64]])
    boxes = random_boxes(sizes, seed=0, epochs=np.array([0, 1, 2]), ids=np.array([0, 10, 20]))
    assert boxes.tolist() == [[34, 61, 332, 407], [19, 31, 343, 296], [0, 7, 51, 48]]


@pytest.mark.parametrize(
    ("size", "shape", "fraction", "box"),
    [
        ((375, 500), (224, 224), 0.875, [23, 86, 328, 328]),
        ((500, 375), (224, 224), 0.875, [86, 23, 328, 328]),
        ((400, 800), (224, 448), 1.0, [0, 0, 400, 800]),
        ((400, 500), (224, 448), 1.0, [75, 0, 250, 500]),
        ((1, 1), (224, 224), 0.875, [0, 0, 1, 1]),
        ((1, 900), (224, 224), 0.875, [0, 449, 1, 1]),
    ],
)
def test_the_centre_has_the_aspect_of_the_result(size, shape, fraction, box):
    assert centre_boxes(np.array([size]), shape, fraction).tolist() == [box]
