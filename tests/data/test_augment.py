"""Crops, flips, shifts and the keys of every random choice of the input."""

import numpy as np
import pytest

from largebatch.data.augment import Augment, centre_boxes, random_boxes
from largebatch.data.mixing import erased_boxes
from largebatch.data.policies import Policy
from largebatch.errors import ConfigError

BATCH, HEIGHT, WIDTH = 64, 6, 9
COUNT = 4000
EPOCHS, IDS = np.zeros(COUNT, np.int64), np.arange(COUNT)


def draws(batch=BATCH):
    return {"seed": 1, "epochs": EPOCHS[:batch], "ids": IDS[:batch]}


def sizes_of(height, width, count=COUNT):
    return np.tile(np.array([height, width], np.int64), (count, 1))


def augmented(augment):
    """All with one image, so that the result shows the choice."""
    image = np.arange(1, HEIGHT * WIDTH * 3 + 1, dtype=np.uint8).reshape(HEIGHT, WIDTH, 3)
    return lambda **keys: augment(np.stack([image] * len(keys["ids"])), **keys)


def steps(policy):
    return lambda **keys: np.array([repr(each) for each in policy.steps((HEIGHT, WIDTH), **keys)])


CHOICES = {
    "shift": augmented(Augment(shift=2)),
    "flip": augmented(Augment(flip=True)),
    "crop": lambda **keys: random_boxes(sizes_of(375, 500, len(keys["ids"])), **keys),
    "erase": lambda **keys: erased_boxes((30, 40), 0.5, **keys),
    "randaugment": steps(Policy("randaugment", magnitude=6)),
    "trivialaugment": steps(Policy("trivialaugment")),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_depend_on_seed_epoch_and_id_alone(name):
    choose, keys = CHOICES[name], draws(1000)
    whole = choose(**keys)
    order = np.random.default_rng(0).permutation(1000)
    np.testing.assert_array_equal(choose(**(keys | {"ids": order})), whole[order])
    np.testing.assert_array_equal(choose(seed=1, epochs=EPOCHS[:2], ids=IDS[7:9]), whole[7:9])
    for change in ({"seed": 2}, {"epochs": keys["epochs"] + 1}, {"ids": keys["ids"] + 1000}):
        equal = (choose(**(keys | change)) == whole).reshape(1000, -1).all(axis=1)
        assert equal.mean() < 0.7  # half of all flips agree by chance


def moved(image, down, right):
    """The image moved by at most two pixels over zeros."""
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    return padded[2 - down : 2 - down + HEIGHT, 2 - right : 2 - right + WIDTH]


def recognise(image, result):
    """The (flipped, down, right) that turn `image` into `result`."""
    found = [
        (flipped, down, right)
        for flipped in (False, True)
        for down in range(-2, 3)
        for right in range(-2, 3)
        if np.array_equal(moved(image[:, ::-1] if flipped else image, down, right), result)
    ]
    assert len(found) == 1
    return found[0]


def test_every_result_is_a_flip_and_a_translation_of_its_image():
    # No zeros and no equal pixels, so that each displacement and mirroring can be recognised.
    values = np.arange(1, HEIGHT * WIDTH * 3 + 1).reshape(HEIGHT, WIDTH, 3)
    images = np.stack([np.roll(values, i) for i in range(BATCH)]).astype(np.uint8)
    result = Augment(shift=2, flip=True)(images.copy(), **draws())
    seen = [recognise(a, b) for a, b in zip(images, result, strict=True)]
    assert (result.shape, result.dtype) == (images.shape, np.uint8)
    assert len(set(seen)) > 20  # of 50; 64 draws reach 36 on average
    # A new release must not change the images of a run that is resumed.
    assert seen[:4] == [(False, -2, 0), (False, -2, -2), (False, -1, 2), (True, -1, 0)]
    assert Augment()(images, **draws()) is images
    with pytest.raises(ConfigError, match=r"data\.shift"):
        Augment(shift=-1)
    with pytest.raises(ConfigError, match=r"data\.shift"):
        Augment(shift=6)(images, **draws())


# ---- crop boxes


@pytest.mark.parametrize("shape", [(375, 500), (1, 1), (2, 900), (3000, 17)])
def test_boxes_lie_within_the_image(shape):
    sizes = sizes_of(*shape)
    top, left, height, width = random_boxes(sizes, seed=0, epochs=EPOCHS, ids=IDS).T
    assert min(top.min(), left.min()) >= 0
    assert min(height.min(), width.min()) >= 1
    assert (top + height <= sizes[:, 0]).all()
    assert (left + width <= sizes[:, 1]).all()


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
        ((400, 500), (224, 448), 1.0, [75, 0, 250, 500]),
        ((1, 900), (224, 224), 0.875, [0, 449, 1, 1]),
    ],
)
def test_the_centre_has_the_aspect_of_the_result(size, shape, fraction, box):
    assert centre_boxes(np.array([size]), shape, fraction).tolist() == [box]
