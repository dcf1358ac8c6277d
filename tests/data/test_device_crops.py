import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from largebatch.data.device_crops import crop_and_resize

RESAMPLINGS = ("linear", "antialias")
# Stored pixels a side and shape of the result: both ways, equal, odd, oblong, and much smaller.
SIZES = (
    (16, (24, 24)),
    (33, (32, 32)),
    (61, (7, 7)),
    (96, (33, 45)),
    (40, (1, 90)),
    (256, (224, 224)),
)
BATCH = 32

jitted = jax.jit(crop_and_resize, static_argnames=("shape", "resampling", "dtype", "arithmetic"))


def drawn(stored, seed):
    """Images that are half noise and half pure black and white, boxes of every kind, and flips."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (BATCH, stored, stored, 3), dtype=np.uint8)
    images[1::2] = np.where(images[1::2] > 127, 255, 0)
    sides = rng.integers(1, stored + 1, (BATCH, 2))
    # One pixel, one row, one column, everything, and next to them.
    sides[:6] = [(1, 1), (1, stored), (stored, 1), (stored, stored), (2, 3), (stored, stored - 1)]
    corners = rng.integers(0, stored - sides + 1)
    corners[6:8] = (stored - sides)[6:8]  # touching the last row and column
    boxes = np.concatenate([corners, sides], axis=1).astype(np.int32)
    return images, boxes, rng.random(BATCH) < 0.5


def cut(images, boxes, flips, make):
    """`make` of each box that is cut out of its image, mirrored where `flips` says so."""
    results = []
    for image, (top, left, height, width), flip in zip(images, boxes, flips, strict=True):
        result = make(image[top : top + height, left : left + width])
        results.append(result[:, ::-1] if flip else result)
    return np.stack(results)


def in_floats(pixels, shape, resampling):
    """The libraries' own resampling in float32: no fixed-point weights, no rounding."""
    pixels = pixels.astype(np.float32)
    if resampling == "linear":
        return cv2.resize(pixels, shape[::-1], interpolation=cv2.INTER_LINEAR)
    channels = [Image.fromarray(np.ascontiguousarray(pixels[..., c])) for c in range(3)]
    return np.stack(
        [np.asarray(c.resize(shape[::-1], Image.Resampling.BILINEAR)) for c in channels], axis=-1
    )


@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16"])
@pytest.mark.parametrize("resampling", RESAMPLINGS)
@pytest.mark.parametrize(("stored", "shape"), SIZES)
def test_it_is_the_exact_weighted_mean_rounded(stored, shape, resampling, arithmetic):
    images, boxes, flips = drawn(stored, seed=1 + stored)
    exact = cut(images, boxes, flips, lambda p: in_floats(p, shape, resampling))
    device = np.asarray(
        jitted(images, boxes, flips, shape, resampling=resampling, arithmetic=arithmetic)
    )
    np.testing.assert_array_equal(device, np.floor(device))
    # Half a level by rounding; 0.01 for float32 coordinates of up to 256 pixels, on both sides.
    assert np.abs(device - exact).max() <= 0.51


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_no_pixel_outside_the_box_is_seen(resampling):
    images, boxes, flips = drawn(33, seed=4)
    others = 255 - images
    for image, other, (top, left, height, width) in zip(images, others, boxes, strict=True):
        inside = np.s_[top : top + height, left : left + width]
        other[inside] = image[inside]
    results = [jitted(i, boxes, flips, (24, 24), resampling=resampling) for i in (images, others)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_an_empty_box_gives_zeros(resampling):
    images, boxes, flips = drawn(16, seed=5)
    boxes[::2] = 0
    device = np.asarray(jitted(images, boxes, flips, (9, 9), resampling=resampling))
    assert not device[::2].any()
    assert device[1::2].any(axis=(1, 2, 3)).all()


def test_bfloat16_holds_all_levels():
    images, _, _ = drawn(16, seed=6)
    assert len(np.unique(images)) == 256
    whole = np.tile(np.int32([0, 0, 16, 16]), (BATCH, 1))
    never = np.zeros(BATCH, bool)
    found = jitted(images, whole, never, (16, 16), resampling="linear", dtype=jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), images)


@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_no_level_is_lost_in_bfloat16(resampling):
    """A box of one level stays at it, whatever the weights are."""
    levels = np.arange(256, dtype=np.uint8).reshape(8, BATCH)
    _, boxes, flips = drawn(61, seed=7)
    for part in levels:
        images = np.broadcast_to(part[:, None, None, None], (BATCH, 61, 61, 3))
        found = jitted(images, boxes, flips, (24, 33), resampling=resampling, arithmetic="bfloat16")
        np.testing.assert_array_equal(found, np.broadcast_to(images[:, :1, :1], found.shape))


def products(platform):
    """The matrix products of the program for a platform: their operands, and whether exact."""
    lowered = jitted.trace(*drawn(16, seed=8), (12, 12), resampling="linear").lower(
        lowering_platforms=(platform,)
    )
    lines = [line for line in lowered.as_text().splitlines() if "stablehlo.dot_general" in line]
    return ["bf16" if "xbf16>" in line else line.count("HIGHEST") for line in lines]


def test_the_arithmetic_is_that_of_the_platform():
    """Accelerators multiply float32 with fewer bits by default, or slowly."""
    assert products("cpu") == [2, 2]  # both operands
    for platform in ("cuda", "tpu"):
        assert products(platform) == ["bf16"] * 5


def test_cpus_compute_in_float32():
    arguments = drawn(61, seed=9)
    chosen, float32 = (
        jitted(*arguments, (24, 33), resampling="linear", arithmetic=a) for a in (None, "float32")
    )
    np.testing.assert_array_equal(chosen, float32)
