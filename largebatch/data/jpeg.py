"""The size of a JPEG, and decoding of a box by nvImageCodec's libjpeg-turbo on the CPU.

Where it is not installed (it has wheels for Linux and Windows), `images` decodes the whole file.
The pixels of an undamaged file are bitwise identical. Of a damaged file, a box above the damage can
still be decoded here.
"""

import functools
import importlib.util
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame's header, SOF0 to SOF15 (ITU-R T.81, table B.1)."""
_thread = threading.local()
_importing = threading.Lock()


def size(data: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG, from its frame header (ITU-R T.81, section B.2.2).

    It takes 3 µs of the interpreter lock, and Pillow 70: with thousands of images a second, the
    thread that trains would wait for that lock.

    Args:
        data: Contents of a file.

    Returns:
        Stored pixels; None unless these are a JPEG of grey levels or colours of 8 bits.
    """
    at = 2
    while data[:2] == b"\xff\xd8" and at + 10 <= len(data) and data[at] == 0xFF:
        marker, length = struct.unpack_from(">BH", data, at + 1)
        if marker in _FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            known = bits == 8 and components in (1, 3) and height and width
            return (height, width) if known else None
        at += 1 if marker == 0xFF else 2 + length  # the first of these fills
    return None


def decode_region(data: bytes, box: tuple[int, int, int, int]) -> np.ndarray | None:
    """Decode a box, without the interpreter lock.

    Args:
        data: Contents of a file that has a `size`.
        box: Top, left, height, width in pixels, within the image.

    Returns:
        uint8 (height, width, 3), greyscale converted; None if the data end too early, or
        nvImageCodec is not installed.
    """
    codec = _codec()
    if codec is None:
        return None
    top, left, height, width = box
    region = codec.Region(start_y=top, start_x=left, end_y=top + height, end_x=left + width)
    decoder, parameters = _decoder()
    try:
        stream = codec.CodeStream(data).get_sub_code_stream(region=region)
        decoded = decoder.decode(stream, params=parameters)
    except RuntimeError:  # a header that it does not read
        return None
    return None if decoded is None else np.asarray(decoded)


def _decoder() -> tuple[Any, Any]:
    """Return this thread's decoder, which threads must not share, and its parameters."""
    if not hasattr(_thread, "decoder"):
        codec = _codec()
        _thread.decoder = (
            codec.Decoder(
                device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
                max_num_cpu_threads=1,
                backends=[codec.Backend(codec.CPU_ONLY)],
            ),
            codec.DecodeParams(apply_exif_orientation=False),
        )
    return _thread.decoder


def _codec() -> Any | None:
    """Return the nvImageCodec module with libjpeg-turbo only; None where it is not installed."""
    if not hasattr(_thread, "codec"):  # one lock per thread, not per image
        with _importing:  # the import changes the environment
            _thread.codec = _import()
    return _thread.codec


@functools.cache
def _import() -> Any | None:
    """Import nvImageCodec with libjpeg-turbo only.

    Its other parts look for CUDA libraries and print errors where these are absent. It reads from
    the environment at import which parts to load and what to print.
    """
    try:
        found = importlib.util.find_spec("nvidia.nvimgcodec")
    except ModuleNotFoundError:
        return None
    if found is None or found.origin is None:
        return None
    parts = Path(found.origin).parent / "extensions"
    with tempfile.TemporaryDirectory() as directory:
        for part in parts.glob("*jpeg_turbo*"):
            (Path(directory) / part.name).symlink_to(part)
        with _environment(NVIMGCODEC_EXTENSIONS_PATH=directory, PYNVIMGCODEC_VERBOSITY="0"):
            from nvidia import nvimgcodec
    return nvimgcodec


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables during the body."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
