"""Decoding and resizing of image files.

Three libraries are used, each where it measured best. All hold a libjpeg-turbo and decode an
undamaged JPEG bitwise identically: nvImageCodec (on the CPU) decodes a box; OpenCV decodes the
whole of one that is much larger than needed, or any where nvImageCodec is not installed, and
resizes; neither holds the interpreter lock. Pillow decodes all other images. Orientation tags are
ignored, as TFDS and torchvision do.
"""

import io
from typing import Literal

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from largebatch.data import jpeg

Resampling = Literal["linear", "antialias"]
Box = tuple[int, int, int, int]
"""Top, left, height, width in pixels."""

# Formats that Pillow may try. It knows forty, and runs another program for some (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Pillow refuses twice as many as a decompression bomb; this limit holds for each library.
_MOST_PIXELS = 178_956_970
# Pixels that a reduced image must keep for each pixel of the result: linear interpolation looks
# at two of them a side, and antialiasing is close to exact from two on (Pillow's `reducing_gap`).
_KEPT = {"linear": 1, "antialias": 2}
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}  # modes that Pillow converts in two steps only
_BITS, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # tags of TIFF, and a value of the second
_ROUNDING = 0.01  # by which resampled floats may leave 0 to 1
# OpenCV's flags by divisor of the size. Those of reduced images are named after grey ones, but the
# flag of colour beside them decides.
_REDUCED = {
    1: 0,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
}

cv2.setNumThreads(0)  # the feed's own threads are the parallelism


class UndecodableError(ValueError):
    """The data are not an image, or a truncated one."""


class Picture:
    """An encoded image whose header has been read.

    Attributes:
        height: Stored pixels, before any orientation tag.
        width: Likewise.
    """

    def __init__(self, data: bytes) -> None:
        """Read the header.

        Args:
            data: Contents of a file: JPEG or a format of Pillow; its name does not matter.

        Raises:
            UndecodableError: The header is not that of an image, or the image is too large.
        """
        self._data = data
        # A JPEG of CMYK is Pillow's: libraries differ in what they take for inverted.
        size = jpeg.size(data)
        self._is_jpeg = size is not None
        self._image = None if self._is_jpeg else _open(data)
        self.height, self.width = size or (self._image.height, self._image.width)
        if self.height * self.width > _MOST_PIXELS:
            raise UndecodableError(
                f"{self.height}×{self.width} pixels, more than {_MOST_PIXELS:,} in all"
            )

    def pixels(self, box: Box | None = None) -> np.ndarray:
        """Decode a box of the image.

        Args:
            box: Part of the image; None is all of it.

        Returns:
            uint8 (height, width, 3); may be read-only.

        Raises:
            UndecodableError: The data are truncated or corrupt.
        """
        box = box or (0, 0, self.height, self.width)
        if self._is_jpeg:
            decoded = jpeg.decode_region(self._data, box)
            if decoded is not None:
                return decoded
        top, left, height, width = box
        return self._whole()[top : top + height, left : left + width]

    def view(
        self,
        box: Box,
        size: tuple[int, int],
        resampling: Resampling,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Decode a box of the image and resize it.

        A box of at least twice the size is decoded at 1/2, 1/4 or 1/8 by the JPEG's own transform,
        which averages pixels; its edges move by half a reduced pixel at most.

        Args:
            box: Part of the image.
            size: Height and width of the result.
            resampling: As for `resize`.
            out: uint8 (*size, 3), contiguous; destination of the result.

        Returns:
            uint8 (*size, 3); `out` if that is given.

        Raises:
            UndecodableError: The data are truncated or corrupt.
        """
        factor = reduction(box, size, resampling) if self._is_jpeg else 1
        if factor > 1:
            reduced = self._whole(factor)
            top, left, height, width = box
            rows, columns = (
                slice(round(first / factor), round((first + length) / factor))
                for first, length in ((top, height), (left, width))
            )
            return resize(reduced[rows, columns], size, resampling, out=out)
        return resize(self.pixels(box), size, resampling, out=out)

    def _whole(self, factor: int = 1) -> np.ndarray:
        """Decode the whole image, a JPEG also at 1/2, 1/4 or 1/8."""
        if self._is_jpeg:
            flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION | _REDUCED[factor]
            decoded = cv2.imdecode(np.frombuffer(self._data, np.uint8), flags)
            if decoded is not None:
                return decoded
        whole = rgb(self._image or _open(self._data))  # which says what is wrong with a JPEG
        return whole if factor == 1 else np.asarray(Image.fromarray(whole).reduce(factor))


class Pixels:
    """A decoded image with the interface of `Picture`.

    Attributes:
        height: Pixels.
        width: Likewise.
    """

    def __init__(self, pixels: np.ndarray) -> None:
        """Take uint8 (height, width, 3)."""
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def pixels(self) -> np.ndarray:
        """Return all of the image."""
        return self._pixels

    def view(
        self,
        box: Box,
        size: tuple[int, int],
        resampling: Resampling,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Resize a box of the image; see `Picture.view`."""
        top, left, height, width = box
        part = self._pixels[top : top + height, left : left + width]
        return resize(part, size, resampling, out=out)


def picture(content: bytes | np.ndarray | Image.Image) -> Picture | Pixels:
    """Return an image of a source: a file's content, uint8 (h, w, 3), or an image of Pillow.

    Raises:
        UndecodableError: As for `Picture` and `rgb`.
    """
    if isinstance(content, bytes):
        return Picture(content)
    return Pixels(content if isinstance(content, np.ndarray) else rgb(content))


def reduction(box: Box, size: tuple[int, int], resampling: Resampling) -> int:
    """Return the divisor of the size at which a box can be decoded: 1, 2, 4 or 8.

    Args:
        box: Part of the image.
        size: Height and width that it will be resized to.
        resampling: As for `resize`.

    Returns:
        The greatest divisor that leaves enough pixels.
    """
    ratio = min(box[2] / size[0], box[3] / size[1]) / _KEPT[resampling]
    return max(factor for factor in (1, 2, 4, 8) if factor == 1 or ratio >= factor)


def resize(
    pixels: np.ndarray,
    size: tuple[int, int],
    resampling: Resampling,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Resize an image.

    Args:
        pixels: uint8 (h, w, 3).
        size: Height and width of the result.
        resampling: `linear` interpolates between the four nearest pixels, as TensorFlow's and the
            MLPerf reference's `resize_bilinear` (half-pixel centres): shrinking by less than two
            aliases a little. `antialias` weights all pixels under a triangle as wide as the
            shrinking factor, as Pillow and torchvision: 6 to 8 times the time.
        out: uint8 (*size, 3), contiguous; destination of the result.

    Returns:
        uint8 (*size, 3); `out` if that is given.
    """
    height, width = size
    if resampling == "linear":
        return cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    # Image.fromarray needs a contiguous array.
    image = Image.fromarray(np.ascontiguousarray(pixels))
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    if out is None:
        return resized
    out[...] = resized
    return out


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except (
        UnidentifiedImageError
    ) as error:  # which names the stream, and that tells nobody anything
        raise UndecodableError(f"{len(data):,} bytes that are not an image") from error
    except MemoryError:
        raise
    except Exception as error:  # data in memory: only the data can be wrong
        raise UndecodableError(f"{len(data):,} bytes that are not an image ({error})") from error


def rgb(image: Image.Image) -> np.ndarray:
    """Return the first frame of an image of Pillow, of any mode, without its transparency.

    Returns:
        uint8 (height, width, 3).

    Raises:
        UndecodableError: The data are truncated or corrupt, or the range of its values is unknown.
    """
    try:
        image.load()
        if image.mode.startswith(("I", "F")):
            return np.repeat(_grey(image)[..., None], 3, axis=2)
        if image.mode in _PREMULTIPLIED:
            image = image.convert(_PREMULTIPLIED[image.mode])
        if "transparency" in image.info:
            image = image.convert("RGBA")
        return np.asarray(image.convert("RGB"))
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise UndecodableError(str(error) or type(error).__name__) from error


def _grey(image: Image.Image) -> np.ndarray:
    """Return uint8 (height, width) of an image of 16 or 32 bits, which Pillow would only clip.

    Integers are of 16 bits (12 where a TIFF states that) or, if none is above 255, of 8. Floats
    are from 0 to 1, or to 255. Other ranges have no known white.
    """
    levels = np.asarray(image)
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    low, high = float(levels.min()), float(levels.max())
    if image.mode == "F":
        scale = 255.0 if high <= 1 + _ROUNDING else 1.0
        known = low >= -_ROUNDING and (high <= 1 + _ROUNDING or 2 <= high < 255.5)  # not NaN
    else:
        bits = 12 if tags.get(_BITS, (16,))[0] == 12 else 16
        scale = 1.0 if high <= 255 else 2.0 ** (8 - bits)
        known = low >= 0 and high < 2**bits
    if not known:
        raise UndecodableError(
            f"values from {low:g} to {high:g} of mode {image.mode}, expected 0 to 1, 255 or 65,535"
        )
    scaled = levels * np.float64(scale)
    grey = (np.rint(scaled) if image.mode == "F" else scaled).clip(0, 255).astype(np.uint8)
    return 255 - grey if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else grey
