"""What is kept of an image: its file, repaired where TFDS repairs, or fewer pixels of it."""

import io
from typing import Literal

import numpy as np
from PIL import Image

from largebatch.data import images
from largebatch.data.prepare import names
from largebatch.data.prepare.plan import Store

Check = Literal["ends", "full"]
CHECKS = ("ends", "full")  # the weaker first

_PNG, _JPEG_END = b"\x89PNG\r\n\x1a\n", b"\xff\xd9"


def check(data: bytes, how: Check) -> None:
    """Checks that an image is one and is whole.

    Args:
        data: The file's contents.
        how: `full` decodes it. `ends` reads the header and looks for a JPEG's end, and decodes
            only what lacks it.

    Raises:
        UndecodableError: It is not.
    """
    images.size_of(data)
    if how == "full" or not data.endswith(_JPEG_END):
        images.decode(data)


def suffices(done: Check, asked: Check) -> bool:
    """Whether what has been checked in one way need not be checked in another."""
    return CHECKS.index(done) >= CHECKS.index(asked)


def jpeg(name: str, data: bytes, store: Store, how: Check) -> bytes:
    """The JPEG that is stored of an image.

    Args:
        name: Of the file; those that TFDS re-encodes are re-encoded.
        data: Its contents.
        store: As is, or with the shorter side shrunk.
        how: As of `check`.

    Returns:
        `data` itself unless one of the two applies.

    Raises:
        UndecodableError: As of `check`.
    """
    height, width = images.size_of(data)
    shorter = min(height, width)
    if store.shorter and shorter > store.shorter:
        size = (
            max(1, round(height * store.shorter / shorter)),
            max(1, round(width * store.shorter / shorter)),
        )
        return _encode(images.resize(images.decode(data), size, "antialias"), store.quality)
    check(data, how)
    if name in names.repaired() and (data.startswith(_PNG) or _is_cmyk(data)):
        # Quality, subsampling and density are TensorFlow's, so only rounding differs from TFDS.
        return _encode(images.decode(data), 100, dpi=(300, 300))
    return data


def decoded(data: bytes, size: int) -> np.ndarray:
    """An image's pixels, all of it squeezed into a square.

    Args:
        data: The file's contents.
        size: Pixels a side.

    Returns:
        uint8 (size, size, 3).

    Raises:
        UndecodableError: It cannot be decoded.
    """
    return images.resize(images.decode(data), (size, size), "antialias")


def _is_cmyk(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        return image.mode == "CMYK"


def _encode(pixels: np.ndarray, quality: int, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        stream, "JPEG", quality=quality, subsampling="4:2:0", **options
    )
    return stream.getvalue()
