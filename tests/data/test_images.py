"""Decoding against Pillow, which stands for a full decode of the whole file."""

import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from largebatch.data import jpeg
from largebatch.data.images import (
    Picture,
    UndecodableError,
    reduction,
    resize,
)


def photo(height=150, width=211, seed=0):
    """Smooth colours with some noise, so that no two regions are alike."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(
        draw.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), np.uint8)
    )
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(
        (pixels + draw.integers(-9, 9, pixels.shape)).clip(0, 255).astype(np.uint8)
    )


def encoded(image, form="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def size_of(data):
    picture = Picture(data)
    return picture.height, picture.width


def reference(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def orientation(value):
    tags = Image.Exif()
    tags[0x112] = value
    return tags


JPEGS = {
    "4:4:4": encoded(photo(), subsampling=0, quality=95),
    "4:2:2": encoded(photo(), subsampling=1),
    "4:2:0": encoded(photo(97, 131), subsampling=2),
    "progressive": encoded(photo(), progressive=True),
    "restart": encoded(photo(), restart_marker_blocks=3),
    "grey": encoded(photo().convert("L")),
    "cmyk": encoded(photo().convert("CMYK")),
    "orientation": encoded(photo(), exif=orientation(6)),
    "one pixel": encoded(photo(1, 1)),
    "tail": encoded(photo()) + b"rubbish",
}


@pytest.fixture(params=["boxes decoded", "no decoder of boxes"])
def platform(request, monkeypatch):
    """With nvImageCodec, and as where it is not installed."""
    if request.param == "no decoder of boxes":
        monkeypatch.setattr(jpeg, "_codec", lambda: None)
    elif jpeg._codec() is None:
        pytest.skip("nvidia-nvimgcodec is not installed")


@pytest.mark.parametrize("kind", sorted(JPEGS))
def test_any_box_is_bitwise_that_of_the_whole_image(kind, platform):
    wanted = reference(JPEGS[kind])
    height, width = wanted.shape[:2]
    assert size_of(JPEGS[kind]) == (height, width)
    np.testing.assert_array_equal(Picture(JPEGS[kind]).pixels(), wanted)
    draw = np.random.default_rng(1)
    for _ in range(25):
        top, left = draw.integers(0, height), draw.integers(0, width)
        box = (top, left, draw.integers(1, height - top + 1), draw.integers(1, width - left + 1))
        got = Picture(JPEGS[kind]).pixels(tuple(map(int, box)))
        np.testing.assert_array_equal(got, wanted[top : top + box[2], left : left + box[3]])


SIXTEEN = (np.arange(60 * 70).reshape(60, 70) * 15).astype(np.uint16)
FRAMES = [photo(seed=seed).quantize(64) for seed in range(2)]
# Data, and the pixels; None is what Pillow decodes.
OTHERS = {
    "png palette transparent": (encoded(photo().quantize(16), "PNG", transparency=b"\0\x80"), None),
    "png 16 bits": (
        encoded(Image.fromarray(SIXTEEN), "PNG"),
        np.repeat((SIXTEEN >> 8).astype(np.uint8)[..., None], 3, axis=2),
    ),
    "gif animated": (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), None),
    "tiff cmyk": (encoded(photo().convert("CMYK"), "TIFF"), None),
    "webp": (encoded(photo(), "WEBP", lossless=True), np.asarray(photo())),
    "bmp": (encoded(photo(), "BMP"), np.asarray(photo())),
}


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_other_formats_are_decoded_by_their_content(kind):
    data, wanted = OTHERS[kind]
    if wanted is None:
        first = Image.open(io.BytesIO(data))
        clear = "RGBA" if "transparency" in first.info else "RGB"
        wanted = np.asarray(first.convert(clear).convert("RGB"))
    np.testing.assert_array_equal(Picture(data).pixels(), wanted)
    assert size_of(data) == wanted.shape[:2]
    view = Picture(data).view((5, 6, 60, 60), (15, 15), "antialias")
    np.testing.assert_array_equal(view, resize(wanted[5:65, 6:66], (15, 15), "antialias"))


GREYS = np.array([[0, 64, 128, 255]], np.uint8).repeat(4, axis=0)
SHARES = GREYS / np.float32(255)
DEEP = {
    "float to 1": (SHARES, GREYS),
    "float to 1 and rounding": (SHARES * np.float32(1.001), GREYS),
    "float to 255": (GREYS.astype(np.float32), GREYS),
    "float to 1.5": (1.5 * SHARES, None),
    "float from -1": (2 * SHARES - 1, None),
    "float NaN": (np.where(GREYS == 64, np.float32(np.nan), SHARES), None),
    "32 bits to 255": (GREYS.astype(np.int32), GREYS),
    "32 bits to 65535": (GREYS.astype(np.int32) * 257, GREYS),
    "32 bits from -1": (GREYS.astype(np.int32) - 1, None),
    "16 bits": (GREYS.astype(np.uint16) * 257, GREYS),
}


@pytest.mark.parametrize("kind", DEEP)
def test_levels_of_16_and_32_bits(kind):
    levels, wanted = DEEP[kind]
    data = encoded(Image.fromarray(levels), "TIFF")
    if wanted is None:
        with pytest.raises(UndecodableError, match="values from"):
            Picture(data).pixels()
    else:
        np.testing.assert_array_equal(
            Picture(data).pixels(), np.repeat(wanted[..., None], 3, axis=2)
        )


def test_white_may_be_zero():
    data = encoded(Image.fromarray(GREYS.astype(np.uint16) * 257), "TIFF")
    tag = struct.pack("<HHI", 262, 3, 1)  # photometric interpretation, a short
    at = data.index(tag) + len(tag)
    np.testing.assert_array_equal(
        Picture(data[:at] + b"\0" + data[at + 1 :]).pixels()[..., 0], 255 - GREYS
    )


HUGE = {
    # The size follows the marker of the frame, FF C0, its length and the depth.
    "jpeg": JPEGS["4:4:4"].replace(
        b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 150, 211),
        b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 60_000, 60_000),
    ),
    "bmp": encoded(photo(), "BMP").replace(
        struct.pack("<ii", 211, 150), struct.pack("<ii", 60_000, 60_000), 1
    ),
}
REFUSED = {
    "empty": b"",
    "marker only": b"\xff\xd8\xff\xe0rubbish",
    "cut header": JPEGS["4:4:4"][:40],
    "eps, for which Pillow would run another program": encoded(photo(), "EPS"),
    "a JPEG of 10 GB": HUGE["jpeg"],
    "a BMP of 10 GB": HUGE["bmp"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_header_that_is_not_of_an_image_is_refused(kind, platform):
    with pytest.raises(UndecodableError):
        size_of(REFUSED[kind])


@pytest.mark.parametrize("kind", ["4:2:0", "cmyk"])
def test_a_jpeg_that_ends_early_is_complete_or_refused(kind, platform):
    data = JPEGS[kind]
    wanted = reference(data)
    whole = []
    for end in sorted({*range(0, len(data), max(1, len(data) // 60)), len(data) - 2, len(data)}):
        try:
            got = Picture(data[:end]).pixels()
        except UndecodableError:
            continue
        np.testing.assert_array_equal(got, wanted)
        whole.append(end)
    assert whole[-1] == len(data)
    assert whole[0] > 0.9 * len(data)  # only the marker of the end may be missing


def test_damaged_data_are_refused_or_decoded_and_always_alike(platform, capfd):
    """Damage raises one kind of error, and no uninitialized memory is returned."""
    files = [*JPEGS.values(), *(data for data, _ in OTHERS.values())]
    draw = np.random.default_rng(0)
    decoded = 0
    for attempt in range(400):
        data = bytearray(files[attempt % len(files)])
        for place in draw.integers(0, len(data) if attempt % 3 else min(600, len(data)), 6):
            data[place] = draw.integers(256)
        if attempt % 5 == 0:
            del data[draw.integers(len(data)) :]
        found = []
        for _ in range(2):
            try:
                picture = Picture(bytes(data))
                if picture.height * picture.width > 1e6:
                    break  # a large one, which only takes time
                box = (picture.height // 3, picture.width // 3, 1 + picture.height // 2, 1)
                found.append(picture.view(box, (8, 8), "linear").tobytes())
            except UndecodableError as error:
                found.append(str(error))
        assert found[:1] == found[1:]
        decoded += bool(found) and isinstance(found[0], bytes)
    assert 100 < decoded < 350
    capfd.readouterr()  # libjpeg and libtiff write warnings


def test_images_are_reduced_as_far_as_enough_pixels_stay():
    for side, linear, antialias in ((447, 1, 1), (448, 2, 1), (896, 4, 2), (5000, 8, 8)):
        for resampling, factor in (("linear", linear), ("antialias", antialias)):
            assert reduction((0, 0, side, 2 * side), (224, 224), resampling) == factor


@pytest.mark.parametrize(("kind", "factor"), [("4:2:0", 2), ("progressive", 4), ("grey", 8)])
def test_a_reduced_jpeg_is_bitwise_that_of_pillow(kind, factor, platform, monkeypatch):
    drafted = Image.open(io.BytesIO(JPEGS[kind]))
    drafted.draft(None, (drafted.width // factor, drafted.height // factor))
    wanted = np.asarray(drafted.convert("RGB"))
    for box in ((0, 0, *reference(JPEGS[kind]).shape[:2]), (16, 24, 80, 64)):
        top, left, height, width = box
        size = (height // factor, width // factor)
        rows = slice(round(top / factor), round((top + height) / factor))
        columns = slice(round(left / factor), round((left + width) / factor))
        part = resize(wanted[rows, columns], size, "linear")
        np.testing.assert_array_equal(Picture(JPEGS[kind]).view(box, size, "linear"), part)
        with monkeypatch.context() as patch:  # a JPEG that only Pillow decodes
            patch.setattr("cv2.imdecode", lambda *_: None)
            found = Picture(JPEGS[kind]).view(box, size, "linear")
        # Means of pixels in place of those of the JPEG's transform.
        assert np.abs(found.astype(int) - part).mean() < 2


def test_many_threads_that_decode_first_are_silent_and_leave_the_environment():
    code = (
        "import io, os\nfrom concurrent.futures import ThreadPoolExecutor\nfrom PIL import Image\n"
        "from largebatch.data.images import Picture\n"
        "s = io.BytesIO(); Image.new('RGB', (40, 30)).save(s, 'JPEG'); before = dict(os.environ)\n"
        "def pixels(data): return Picture(data).pixels()\n"
        "with ThreadPoolExecutor(16) as pool: list(pool.map(pixels, [s.getvalue()] * 64))\n"
        "assert dict(os.environ) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
