"""Decoding a box of a JPEG without the rest, by nvImageCodec's libjpeg-turbo on the CPU.

Absent from a platform (it has wheels for Linux and Windows), its place is taken by a full decode,
which gives the same bits of an undamaged file. Of one that is cut off or damaged, a box above the
damage is still decoded here.
"""

import functools
import importlib.util
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_thread = threading.local()
_importing = threading.Lock()


def read_header(data: bytes) -> Any | None:
    """Reads the header of a JPEG.

    Args:
        data: A file's contents.

    Returns:
        A stream with `height` and `width`, for `decode_region`; None if the data are no JPEG or
        the platform has no decoder of boxes.
    """
    codec = _codec()
    if codec is None or data[:2] != b"\xff\xd8":
        return None
    try:
        stream = codec.CodeStream(data)
        _ = stream.height  # parsed when first asked for
    except RuntimeError:
        return None
    return stream


def decode_region(stream: Any, box: tuple[int, int, int, int]) -> np.ndarray | None:
    """Decodes a box; the interpreter lock is free meanwhile.

    Args:
        stream: What `read_header` returned.
        box: Top, left, height, width in pixels, within the picture.

    Returns:
        uint8 (height, width, 3), greyscale and CMYK converted; None if the data end too early.
    """
    codec = _codec()
    top, left, height, width = box
    region = codec.Region(start_y=top, start_x=left, end_y=top + height, end_x=left + width)
    decoder, parameters = _decoder()
    decoded = decoder.decode(stream.get_sub_code_stream(region=region), params=parameters)
    return None if decoded is None else np.asarray(decoded)


def _decoder() -> tuple[Any, Any]:
    """This thread's decoder, which is not to be shared, and its parameters."""
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
    """The nvImageCodec module with its libjpeg-turbo alone; None where it is not installed."""
    if not hasattr(_thread, "codec"):  # asked for every picture, so the lock is taken once a thread
        with _importing:  # they begin at the same moment, and the environment is everybody's
            _thread.codec = _import()
    return _thread.codec


@functools.cache
def _import() -> Any | None:
    """As `_codec`.

    The module's other parts look for CUDA libraries and complain on stderr where those are absent.
    Which parts are loaded and how loud they are is read from the environment, at import and never
    again.
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
    """Environment variables set for a while."""
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
