"""Operations against their formulas in NumPy, and the choices of the two policies."""

import math

import numpy as np
import pytest
from PIL import Image

from largebatch.data.policies import OPERATIONS, RANDAUGMENT, TRIVIALAUGMENT, Policy, Warp
from largebatch.errors import ConfigError

BILINEAR = Warp(Image.Resampling.BILINEAR, (10, 20, 30))
H, W = 12, 16


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(20, 230, (H, W, 3)).astype(np.uint8)


def applied(name, pixels, argument=0.0, warp=BILINEAR):
    return np.asarray(OPERATIONS[name](Image.fromarray(pixels), argument, warp))


def test_geometry(pixels):
    """Pixels come from (x + slope·y + c, …); rotation is counter-clockwise about the centre."""
    moved = np.full_like(pixels, BILINEAR.fill)
    moved[:, :-3] = pixels[:, 3:]
    np.testing.assert_array_equal(applied("translate_x", pixels, 3.0), moved)
    moved = np.full_like(pixels, BILINEAR.fill)
    moved[2:] = pixels[:-2]
    np.testing.assert_array_equal(applied("translate_y", pixels, -2.0), moved)
    square = pixels[:, :H]
    np.testing.assert_array_equal(applied("rotate", square, 90.0), np.rot90(square))
    columns = np.tile(10 * np.arange(12, dtype=np.uint8)[:, None], (12, 1, 3))
    place = 4 + 0.25 * 8.5  # pixels have centres at ½
    assert applied("shear_x", columns, 0.25)[8, 4, 0] == pytest.approx(10 * place, abs=1)
    rows = columns.transpose(1, 0, 2)
    assert applied("shear_y", rows, 0.25)[4, 8, 0] == pytest.approx(10 * place, abs=1)
    black = applied("rotate", pixels, 25.0, Warp(Image.Resampling.BICUBIC, (0, 0, 0)))
    assert (black[0, 0] == 0).all()
    flat = applied("rotate", np.full((H, W), 99, np.uint8), 25.0, Warp(BILINEAR.resample, (7,)))
    assert set(np.unique(flat)) == {7, 99}


def test_tables_of_levels(pixels):
    levels = pixels.astype(int)
    for name, argument, expected in (
        ("identity", 0, levels),
        ("invert", 0, 255 - levels),
        ("posterize", 3, levels & 0b11100000),
        ("posterize", 8, levels),
        ("posterize", 0, 0 * levels),
        ("solarize", 100, np.where(levels < 100, levels, 255 - levels)),
        ("solarize", 256, levels),
        ("solarize_add", 66, np.where(levels < 128, levels + 66, levels)),
    ):
        np.testing.assert_array_equal(applied(name, pixels, argument), expected, err_msg=name)
    dark = np.full((2, 2), 127, np.uint8)
    assert applied("solarize_add", dark, 110).max() == 237


def arguments(choices, s, sign=1):
    return {c.name: c.argument(s, sign, 160) for c in choices}


def test_arguments_of_randaugment_are_those_of_timm():
    """rand-m6-…-inc1: a strength of 0.6 of each range; 10 is the end of it."""
    assert len(RANDAUGMENT) == 15
    found = arguments(RANDAUGMENT, 0.6)
    assert found == pytest.approx(
        dict.fromkeys(("autocontrast", "equalize", "invert"), 0)
        | {"rotate": 18, "posterize": 2, "solarize": 103, "solarize_add": 66}
        | dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 1.54)
        | {"shear_x": 0.18, "shear_y": 0.18, "translate_x": 43.2, "translate_y": 43.2}
    )
    end = arguments(RANDAUGMENT, 1.0, -1)
    assert (end["posterize"], end["solarize"], end["solarize_add"]) == (0, 0, 110)
    assert (end["rotate"], end["color"], end["translate_x"]) == (-30, pytest.approx(0.1), -72)


def test_arguments_of_trivialaugment_are_those_of_torchvision():
    assert len(TRIVIALAUGMENT) == 14
    end = arguments(TRIVIALAUGMENT, 1.0, -1)
    assert end == pytest.approx(
        dict.fromkeys(("identity", "autocontrast", "equalize"), 0)
        | {"rotate": -135, "posterize": 2, "solarize": 0}
        | dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 0.01)
        | {"shear_x": -0.99, "shear_y": -0.99, "translate_x": -32, "translate_y": -32}
    )
    bits = [arguments(TRIVIALAUGMENT, b / 30)["posterize"] for b in range(31)]
    assert bits == [8] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
    assert arguments(TRIVIALAUGMENT, 7 / 30)["translate_y"] == 7  # 7.47 without its fraction


COUNT = 4000


def steps(policy, count=COUNT):
    keys = {"seed": 1, "epochs": np.zeros(count, int), "ids": np.arange(count)}
    return list(policy.steps((H, W), **keys))


@pytest.mark.parametrize("kind", ["randaugment", "trivialaugment"])
def test_choices_are_even(kind):
    whole = steps(Policy(kind, magnitude=6))
    names = [step.name for image in whole for step in image]
    choices = RANDAUGMENT if kind == "randaugment" else TRIVIALAUGMENT
    applied = COUNT / len(choices)  # half of two, or one
    for choice in choices:
        assert abs(names.count(choice.name) - applied) < 5 * math.sqrt(applied)
    lengths = np.bincount([len(image) for image in whole]) / COUNT
    expected = [0.25, 0.5, 0.25] if kind == "randaugment" else [0, 1]
    np.testing.assert_allclose(lengths, expected, atol=0.04)
    slopes = [step.argument for image in whole for step in image if step.name == "rotate"]
    assert abs(np.mean(np.sign(slopes))) < 5 / math.sqrt(len(slopes))
    cubic = np.mean([s.resample == Image.Resampling.BICUBIC for i in whole for s in i])
    assert cubic == (pytest.approx(0.5, abs=0.04) if kind == "randaugment" else 0)


def test_strengths_of_randaugment_are_normal():
    found = steps(Policy("randaugment", magnitude=6, magnitude_std=0.5))
    degrees = np.array([abs(s.argument) for i in found for s in i if s.name == "rotate"])
    assert abs(degrees.mean() - 18) < 0.5
    assert abs(degrees.std() - 1.5) < 0.3
    fixed = steps(Policy("randaugment", magnitude=10, magnitude_std=0.0, layers=1))
    assert {abs(s.argument) for i in fixed for s in i if s.name == "rotate"} == {30.0}
    assert max(map(len, fixed)) == 1
    pixels = {s.name: abs(s.argument) for i in fixed for s in i if s.name.startswith("translate")}
    assert pixels == pytest.approx({"translate_x": 0.45 * W, "translate_y": 0.45 * H})


def test_choices_are_golden():
    """A new release must not change the images of a run that is resumed."""
    for kind, golden in GOLDEN.items():
        found = steps(Policy(kind, magnitude=6), 4)
        assert [[(s.name, pytest.approx(s.argument, rel=1e-9)) for s in i] for i in found] == golden


GOLDEN = {
    "randaugment": [
        [("shear_x", 0.1757735376)],
        [("posterize", 2), ("sharpness", 0.4566446372)],
        [("sharpness", 0.5371573235)],
        [("invert", 0)],
    ],
    "trivialaugment": [
        *([("translate_y", 0)], [("color", 0.637)], [("sharpness", 0.307)], [("shear_y", -0.363)])
    ],
}


@pytest.mark.parametrize(("kind", "channels"), [("randaugment", 1), ("trivialaugment", 3)])
def test_images_are_changed_in_place(kind, channels):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (64, H, W, channels)).astype(np.uint8)
    before, policy = images.copy(), Policy(kind)
    keys = {"seed": 1, "epochs": np.zeros(64, int), "ids": np.arange(64)}
    assert policy(images, **keys) is images
    same = (images == before).all(axis=(1, 2, 3))
    idle = np.array([not s for s in steps(policy, 64)])
    assert same[idle].all()
    assert 0.5 < (~same).mean() < 1
    alone = before[9:10].copy()
    policy(alone, seed=1, epochs=np.zeros(1, int), ids=np.array([9]))
    np.testing.assert_array_equal(alone[0], images[9])
    with pytest.raises(ConfigError, match=r"augment\.policy"):
        policy(np.zeros((1, H, W, 2), np.uint8), seed=0, epochs=np.zeros(1, int), ids=np.arange(1))
