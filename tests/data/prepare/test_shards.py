import io

import numpy as np
import pytest
from PIL import Image

from largebatch.data import images
from largebatch.data.prepare import shards
from largebatch.data.prepare.plan import Store
from tests.data.prepare import fakes

AS_IS = Store()
SHRUNK = Store(shorter=24, quality=90)
GREY, ROTATED, SIXTEEN = fakes.ODD[3:]


def luminance(image):
    """0.299 R + 0.587 G + 0.114 B, float64 (h, w)."""
    return np.asarray(image).astype(float) @ (0.299, 0.587, 0.114)


def opened(data):
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("how", shards.CHECKS)
def test_images_are_kept_byte_for_byte_except_those_that_tfds_repairs(how):
    for name, data in fakes.train().items():
        kept = shards.stored_jpeg(name, data, AS_IS, how)
        assert (kept is data) == (name not in (fakes.PNG, fakes.CMYK)), name


@pytest.mark.parametrize("name", [fakes.PNG, fakes.CMYK])
def test_a_repaired_image_is_a_plain_jpeg_of_the_same_pixels(name):
    original = fakes.train()[name]
    data = shards.stored_jpeg(name, original, AS_IS, "ends")
    assert shards.stored_jpeg(name, data, AS_IS, "ends") is data  # repaired once
    repaired = opened(data)
    assert (repaired.format, repaired.mode) == ("JPEG", "RGB")
    # Quality 100 rounds coefficients to integers: one level of luminance.
    assert np.abs(luminance(repaired) - luminance(images.decode(original))).max() <= 2


@pytest.mark.parametrize("how", shards.CHECKS)
@pytest.mark.parametrize("name", ["plain", fakes.PNG, fakes.CMYK])
def test_truncated_images_are_found(how, name):
    data = fakes.train().get(name, fakes.photo(1))
    ends = [0, 1, 10, 150, len(data) // 2, len(data) - 300]
    if name != fakes.PNG:  # its last 20 bytes hold no pixels
        ends += [len(data) - 20, len(data) - 2, len(data) - 1]
    for end in ends:
        with pytest.raises(images.UndecodableError):
            shards.check_image(data[:end], how)


@pytest.mark.parametrize("how", shards.CHECKS)
def test_bytes_after_the_end_are_no_truncation(how):
    shards.check_image(fakes.photo(1) + b"\0\0 and more", how)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((40, 56), (24, 34)), ((56, 40), (34, 24)), ((100, 24), None), ((20, 90), None)],
)
def test_only_larger_images_are_shrunk(shape, expected):
    data = fakes.photo(5, *shape)
    kept = shards.stored_jpeg("n01440764_1.JPEG", data, SHRUNK, "ends")
    if expected is None:
        assert kept is data
        return
    assert images.size_of(kept) == expected
    exact = images.resize(images.decode(data), expected, "antialias")
    # Quality 90 divides coefficients by 2 to 24: a few levels.
    assert np.abs(luminance(exact) - luminance(images.decode(kept))).mean() < 2


def test_shrunk_images_have_the_stated_quality_and_subsampling():
    kept = opened(shards.stored_jpeg("n01440764_1.JPEG", fakes.photo(5), SHRUNK, "ends"))
    like = opened(fakes.encoded(Image.new("RGB", (8, 8)), quality=90, subsampling="4:2:0"))
    assert kept.quantization == like.quantization
    assert [layer[1:3] for layer in kept.layer] == [(2, 2), (1, 1), (1, 1)]


@pytest.mark.parametrize("name", fakes.ODD)
def test_odd_images_become_plain_jpegs(name):
    kept = opened(shards.stored_jpeg(name, fakes.train()[name], SHRUNK, "ends"))
    assert (kept.format, kept.mode, min(kept.size)) == ("JPEG", "RGB", 24)
    if name == ROTATED:  # the tag is ignored and removed
        assert kept.size == (34, 24)
        assert not kept.getexif()
