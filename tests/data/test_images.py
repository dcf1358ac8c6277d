"""Decoding against Pillow, which stands for a full decode of the whole file."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from largebatch.data import images, jpeg
from largebatch.data.images import Picture, UndecodableError, decode, reduction, resize, size_of


def photo(height=150, width=211, seed=0):
    """Smooth colours with some noise: what a JPEG is made for, no two regions alike."""
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


def reference(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def orientation(value):
    tags = Image.Exif()
    tags[0x112] = value
    return tags


JPEGS = {
    "4:4:4": encoded(photo(), subsampling=0, quality=95),
    "4:2:2": encoded(photo(), subsampling=1),
    "4:2:0": encoded(photo(), subsampling=2),
    "4:2:0 odd": encoded(photo(97, 131), subsampling=2, quality=60),
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
def test_any_box_is_that_of_the_whole_picture_to_the_bit(kind, platform):
    wanted = reference(JPEGS[kind])
    height, width = wanted.shape[:2]
    assert size_of(JPEGS[kind]) == (height, width)
    np.testing.assert_array_equal(decode(JPEGS[kind]), wanted)
    draw = np.random.default_rng(1)
    for _ in range(25):
        top, left = draw.integers(0, height), draw.integers(0, width)
        box = (top, left, draw.integers(1, height - top + 1), draw.integers(1, width - left + 1))
        got = Picture(JPEGS[kind]).pixels(tuple(map(int, box)))
        np.testing.assert_array_equal(got, wanted[top : top + box[2], left : left + box[3]])


def test_boxes_are_decoded_where_the_library_can():
    if jpeg._codec() is None:
        pytest.skip("nvidia-nvimgcodec is not installed")
    stream = jpeg.read_header(JPEGS["4:2:0"])
    assert jpeg.decode_region(stream, (10, 20, 30, 40)).shape == (30, 40, 3)
    assert jpeg.read_header(encoded(photo(), "PNG")) is None


def animated(form, **options):
    """Three frames, of which only the first is seen."""
    stills = [photo(seed=seed).quantize(64) for seed in range(3)]
    return encoded(stills[0], form, save_all=True, append_images=stills[1:], **options)


def png(width, height, depth, colour, rows=b""):
    """A PNG by the letter, for what Pillow does not write: `rows` with their filter bytes."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


DEEP = np.random.default_rng(2).integers(0, 1 << 16, (60, 70, 3), np.uint16)
SIXTEEN = (np.arange(60 * 70).reshape(60, 70) * 15).astype(np.uint16)
ODD = {
    "png": (encoded(photo(), "PNG"), np.asarray(photo())),
    "png grey": (encoded(photo().convert("L"), "PNG"), None),
    "png palette": (encoded(photo().quantize(16), "PNG"), None),
    "png palette transparent": (encoded(photo().quantize(16), "PNG", transparency=b"\0\x80"), None),
    "png alpha": (encoded(photo().convert("RGBA"), "PNG"), np.asarray(photo())),
    "png 16 bits": (
        encoded(Image.fromarray(SIXTEEN), "PNG"),
        np.repeat((SIXTEEN >> 8).astype(np.uint8)[..., None], 3, axis=2),
    ),
    "png 16 bits, colour": (
        png(70, 60, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in DEEP)),
        (DEEP >> 8).astype(np.uint8),
    ),
    "png grey alpha": (encoded(photo().convert("LA"), "PNG"), None),
    "png black and white": (encoded(photo().convert("1"), "PNG"), None),
    "gif animated": (animated("GIF"), None),
    "webp animated": (animated("WEBP", lossless=True), None),
    "tiff": (encoded(photo(), "TIFF", compression="tiff_lzw"), np.asarray(photo())),
    "tiff cmyk": (encoded(photo().convert("CMYK"), "TIFF"), None),
    "ppm": (encoded(photo(), "PPM"), np.asarray(photo())),
    "gif": (encoded(photo().quantize(64), "GIF"), None),
    "webp": (encoded(photo(), "WEBP", lossless=True), np.asarray(photo())),
    "bmp": (encoded(photo(), "BMP"), np.asarray(photo())),
}


@pytest.mark.parametrize("kind", sorted(ODD))
def test_what_is_no_jpeg_is_decoded_by_its_content(kind):
    data, wanted = ODD[kind]
    if wanted is None:
        first = Image.open(io.BytesIO(data))
        clear = "RGBA" if "transparency" in first.info else "RGB"
        wanted = np.asarray(first.convert(clear).convert("RGB"))
    np.testing.assert_array_equal(decode(data), wanted)
    assert size_of(data) == wanted.shape[:2]
    np.testing.assert_array_equal(Picture(data).pixels((5, 6, 20, 30)), wanted[5:25, 6:36])
    view = Picture(data).view((0, 0, 60, 60), (15, 15), "antialias")
    np.testing.assert_array_equal(view, resize(wanted[:60, :60], (15, 15), "antialias"))


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 1000, b"\xff\xd8\xff\xe0rubbish", JPEGS["4:4:4"][:40], b"<html>not found</html>"],
    ids=["empty", "zeros", "marker only", "cut header", "html"],
)
def test_what_has_no_header_is_refused(data, platform):
    with pytest.raises(UndecodableError):
        size_of(data)


@pytest.mark.parametrize("kind", ["4:4:4", "progressive", "grey"])
def test_a_truncated_picture_is_refused_when_the_end_is_wanted(kind, platform):
    data = JPEGS[kind][: len(JPEGS[kind]) // 3]
    height, width = size_of(data)
    with pytest.raises(UndecodableError, match="truncated"):
        decode(data)
    with pytest.raises(UndecodableError):
        Picture(data).view((height - 20, 0, 20, width), (8, 8), "linear")


HUGE = {
    # The size stands behind the marker of the frame, FF C0, its length and the depth.
    "jpeg": JPEGS["4:4:4"].replace(
        b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 150, 211),
        b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 60_000, 60_000),
    ),
    "png": png(60_000, 60_000, 8, 2, b"\0" * 1000),
    "bmp": encoded(photo(), "BMP").replace(
        struct.pack("<ii", 211, 150), struct.pack("<ii", 60_000, 60_000), 1
    ),
    "gif": encoded(photo().quantize(64), "GIF").replace(
        struct.pack("<HH", 211, 150), struct.pack("<HH", 60_000, 60_000)
    ),
    "ppm": b"P6 60000 60000 255\n" + b"\0" * 1000,
}


@pytest.mark.parametrize("kind", sorted(HUGE))
def test_a_header_that_promises_a_huge_picture_is_refused_without_its_memory(kind, platform):
    """60,000×60,000 would take 10 GB."""
    with pytest.raises(UndecodableError, match=r"60000×60000 pixels|3600000000 pixels"):
        size_of(HUGE[kind])


@pytest.mark.parametrize("kind", ["4:2:0", "progressive", "cmyk", "one pixel"])
def test_a_jpeg_cut_off_anywhere_is_whole_or_refused(kind, platform):
    data = JPEGS[kind]
    wanted = reference(data)
    whole = []
    for end in sorted({*range(0, len(data), max(1, len(data) // 60)), len(data) - 2, len(data)}):
        try:
            got = decode(data[:end])
        except UndecodableError:
            continue
        np.testing.assert_array_equal(got, wanted)
        whole.append(end)
    assert whole[-1] == len(data)
    assert whole[0] > 0.9 * len(data)  # only the marker of the end may be missing


@pytest.mark.parametrize("kind", sorted(ODD))
def test_another_picture_cut_off_is_refused_or_has_its_shape(kind):
    """Formats without a mark of their end may be complete before the last byte."""
    data, shape = ODD[kind][0], decode(ODD[kind][0]).shape
    refused = 0
    for share in np.linspace(0, 0.9, 10):
        try:
            assert decode(data[: int(len(data) * share)]).shape == shape
        except UndecodableError:
            refused += 1
    assert refused >= (3 if "animated" in kind else 8)


def test_bytes_changed_in_the_middle_are_refused_or_decoded_and_always_alike(platform, capfd):
    """Whatever is wrong there is one kind of error, and no memory shows that nobody has written."""
    files = [*JPEGS.values(), *(data for data, _ in ODD.values())]
    draw = np.random.default_rng(0)
    decoded = 0
    for turn in range(400):
        data = bytearray(files[turn % len(files)])
        for place in draw.integers(0, len(data) if turn % 3 else min(600, len(data)), 6):
            data[place] = draw.integers(256)
        found = []
        for _ in range(2):
            try:
                picture = Picture(bytes(data))
                if picture.height * picture.width > 1e6:
                    break  # by chance a large one, which only takes time
                box = (picture.height // 3, picture.width // 3, 1 + picture.height // 2, 1)
                found.append(picture.view(box, (8, 8), "linear").tobytes())
            except UndecodableError as error:
                found.append(str(error))
        assert found[:1] == found[1:]
        decoded += bool(found) and isinstance(found[0], bytes)
    assert 100 < decoded < 390
    capfd.readouterr()  # libjpeg and libtiff say on stderr what they mend


def test_no_other_format_is_tried():
    """Pillow would hand PostScript to another program."""
    postscript = io.BytesIO()
    photo().save(postscript, "EPS")
    assert Image.open(postscript).format == "EPS"
    with pytest.raises(UndecodableError, match="bytes that are not an image"):
        size_of(postscript.getvalue())


def test_a_huge_picture_is_refused_before_it_is_decoded(platform, monkeypatch):
    monkeypatch.setattr(images, "_MOST_PIXELS", 1000)
    with pytest.raises(UndecodableError, match="150×211 pixels, more than 1,000"):
        size_of(JPEGS["4:4:4"])


@pytest.mark.parametrize("resampling", ["linear", "antialias"])
def test_a_view_is_the_resized_box(resampling, platform):
    data = JPEGS["4:2:0"]
    for box, size in (((10, 20, 100, 120), (64, 64)), ((0, 0, 30, 20), (60, 44))):
        wanted = resize(reference(data)[box[0] :, box[1] :][: box[2], : box[3]], size, resampling)
        out = np.empty((*size, 3), np.uint8)
        got = Picture(data).view(box, size, resampling, out=out)
        assert got is out or got.base is out
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(Picture(data).view(box, size, resampling), wanted)


def test_antialias_is_pillows_bilinear_of_the_box():
    picture = photo()
    box = (7, 11, 120, 140)  # top, left, height, width
    wanted = picture.crop((11, 7, 151, 127)).resize((48, 48), Image.Resampling.BILINEAR)
    cut = np.asarray(picture)[7:127, 11:151]
    np.testing.assert_array_equal(resize(cut, (48, 48), "antialias"), np.asarray(wanted))
    assert box[2:] == cut.shape[:2]


def test_linear_interpolates_between_neighbours_with_half_pixel_centres():
    pixels = photo(40, 50).crop((0, 0, 50, 40))
    source = np.asarray(pixels).astype(float)
    at = np.clip((np.arange(33) + 0.5) * 40 / 33 - 0.5, 0, 39)
    low = np.minimum(at.astype(int), 38)
    part = (at - low)[:, None, None]
    rows = source[low] * (1 - part) + source[low + 1] * part
    got = resize(np.asarray(pixels), (33, 50), "linear")
    # OpenCV's weights have 11 bits and its result is rounded: at most half a level and a little.
    assert np.abs(got - rows).max() < 0.75


@pytest.mark.parametrize(
    ("box", "resampling", "factor"),
    [
        ((0, 0, 447, 447), "linear", 1),
        ((0, 0, 448, 448), "linear", 2),
        ((0, 0, 448, 9000), "linear", 2),
        ((0, 0, 895, 895), "linear", 2),
        ((0, 0, 896, 896), "linear", 4),
        ((0, 0, 5000, 5000), "linear", 8),
        ((0, 0, 895, 895), "antialias", 1),
        ((0, 0, 896, 896), "antialias", 2),
        ((0, 0, 10, 10), "linear", 1),
    ],
)
def test_pictures_are_reduced_as_far_as_enough_pixels_stay(box, resampling, factor):
    assert reduction(box, (224, 224), resampling) == factor


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_reduced_view_shows_the_same_place(factor, platform):
    data = encoded(photo(700, 801), quality=95)
    side = 75
    box = (80, 64, side * factor, side * factor)  # whole reduced pixels, so edges stay
    got = Picture(data).view(box, (side, side), "linear").astype(float)
    cut = reference(data)[box[0] : box[0] + box[2], box[1] : box[1] + box[3]].astype(float)
    means = cut.reshape(side, factor, side, factor, 3).mean((1, 3))
    # The JPEG's own reduction averages blocks, colours over a coarser grid. A view elsewhere
    # differs by 40 levels and more.
    assert np.abs(got - means).mean() < 4
    elsewhere = Picture(data).view((0, 0, *box[2:]), (side, side), "linear")
    assert np.abs(elsewhere - means).mean() > 15


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_edges_of_a_reduced_box_move_by_half_a_reduced_pixel_at_most(factor, monkeypatch):
    places = np.stack(np.indices((150 // factor + 1, 211 // factor + 1)), axis=-1)
    monkeypatch.setattr(Picture, "_reduced", lambda self, by: places)
    monkeypatch.setattr(images, "reduction", lambda *_: factor)
    monkeypatch.setattr(images, "resize", lambda pixels, *_, **__: pixels)
    draw = np.random.default_rng(factor)
    for _ in range(200):
        top, left = draw.integers(0, 150 - 2 * factor), draw.integers(0, 211 - 2 * factor)
        height, width = draw.integers(2 * factor, [150 - top + 1, 211 - left + 1])
        seen = Picture(JPEGS["4:4:4"]).view((top, left, height, width), (1, 1), "linear")
        first, last = seen[0, 0] * factor, (seen[-1, -1] + 1) * factor
        assert np.abs(first - (top, left)).max() <= factor / 2
        assert np.abs(last - (top + height, left + width)).max() <= factor / 2


def test_decoding_is_silent_and_needs_no_other_room():
    code = (
        "import io, sys\nfrom PIL import Image\nfrom largebatch.data.images import decode\n"
        "s = io.BytesIO(); Image.new('RGB', (40, 30)).save(s, 'JPEG'); decode(s.getvalue())\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_many_threads_that_decode_first_leave_the_environment_as_it_was():
    code = (
        "import io, os\nfrom concurrent.futures import ThreadPoolExecutor\nfrom PIL import Image\n"
        "from largebatch.data.images import decode\n"
        "s = io.BytesIO(); Image.new('RGB', (40, 30)).save(s, 'JPEG'); before = dict(os.environ)\n"
        "with ThreadPoolExecutor(16) as pool: list(pool.map(decode, [s.getvalue()] * 64))\n"
        "assert dict(os.environ) == before\n"
    )
    for _ in range(3):  # it used to fail every other time
        subprocess.run([sys.executable, "-c", code], check=True)
