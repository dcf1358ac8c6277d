import numpy as np
import pytest

from largebatch.data.augment import Augment
from largebatch.errors import ConfigError

BATCH, HEIGHT, WIDTH = 64, 6, 9


@pytest.fixture
def images():
    # No zeros and no equal pixels, so that each displacement and mirroring can be recognised.
    values = np.arange(1, HEIGHT * WIDTH * 3 + 1).reshape(HEIGHT, WIDTH, 3)
    return np.stack([np.roll(values, i) for i in range(BATCH)]).astype(np.uint8)


def draws(batch=BATCH, epoch=0):
    return {"seed": 1, "epochs": np.full(batch, epoch), "ids": np.arange(batch)}


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


def test_nothing_to_do_returns_the_images(images):
    assert Augment()(images, **draws()) is images


def test_every_result_is_a_flip_and_a_translation_of_its_image(images):
    before = images.copy()
    result = Augment(shift=2, flip=True)(images.copy(), **draws())
    seen = [recognise(a, b) for a, b in zip(images, result, strict=True)]
    assert (result.shape, result.dtype) == (images.shape, np.uint8)
    assert len(set(seen)) > 20  # of 50; 64 draws reach 36 on average
    np.testing.assert_array_equal(images, before)
    # A new release must not change the images of a run that is resumed.
    assert seen[:4] == [(False, -2, 0), (False, -2, -2), (False, -1, 2), (True, -1, 0)]


@pytest.mark.parametrize("shift", [1, 5])
def test_displacements_and_flips_are_even(shift):
    count = 20_000
    image = np.zeros((count, 11, 11, 1), np.uint8)
    image[:, 5, 5] = 1  # a mark in the middle: where it lands is the displacement
    result = Augment(shift=shift)(image, **draws(count))
    landed = np.argwhere(result[..., 0])[:, 1:] - 5
    assert len(landed) == count
    side = 2 * shift + 1
    counts = np.bincount((landed + shift) @ [side, 1], minlength=side**2)
    freedom, expected = side**2 - 1, count / side**2
    score = ((counts - expected) ** 2 / expected).sum()
    assert abs(score - freedom) < 5 * np.sqrt(2 * freedom)  # also fails if suspiciously regular

    image[:] = 0
    image[:, 5, 0] = 1
    mirrored = Augment(flip=True)(image, **draws(count))[:, 5, 10, 0]
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(count)


# One of 25 displacements agrees by chance, and every other flip: bounds over 64 draws.
@pytest.mark.parametrize(
    ("augment", "chance"), [(Augment(shift=2), 0.2), (Augment(flip=True), 0.8)]
)
def test_choices_depend_on_seed_epoch_and_id_and_on_nothing_else(images, augment, chance):
    whole = augment(images.copy(), **draws())
    order = np.random.default_rng(0).permutation(BATCH)
    shuffled = augment(images[order].copy(), seed=1, epochs=np.zeros(BATCH, int), ids=order)
    np.testing.assert_array_equal(shuffled, whole[order])
    part = augment(images[7:9].copy(), seed=1, epochs=np.zeros(2, int), ids=np.array([7, 8]))
    np.testing.assert_array_equal(part, whole[7:9])

    def unchanged(**other):
        result = augment(images.copy(), **(draws() | other))
        return np.all(result == whole, axis=(1, 2, 3)).mean()

    assert unchanged() == 1
    assert unchanged(seed=2) < chance
    assert unchanged(epochs=np.ones(BATCH, int)) < chance
    assert unchanged(ids=np.arange(BATCH) + BATCH) < chance


def test_a_shift_that_cannot_be_is_an_error(images):
    with pytest.raises(ConfigError, match=r"data\.shift: .*got -1"):
        Augment(shift=-1)
    with pytest.raises(ConfigError, match=r"data\.shift: .*got 6"):
        Augment(shift=6)(images.copy(), **draws())
