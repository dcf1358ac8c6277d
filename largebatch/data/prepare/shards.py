"""Conversion and writing of one shard; the same images give the same bytes."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from PIL import Image

from largebatch.data import images
from largebatch.data.prepare import names, records
from largebatch.data.prepare.archives import Archive, Row
from largebatch.data.prepare.metadata import Shard, files_of
from largebatch.data.prepare.plan import Store

Check = Literal["ends", "full"]
CHECKS = get_args(Check)  # the weaker first
Problem = tuple[str, str]
"""Where an image is, and what is wrong with it."""

_PNG, _JPEG_END = b"\x89PNG\r\n\x1a\n", b"\xff\xd9"


@dataclass(frozen=True)
class Task:
    """A shard to be written.

    Attributes:
        directory: Where its files are written.
        store: What is stored of an image.
        check: How images are checked; see `check_image`.
        split: `train` or `validation`.
        shard: Its number.
        shards: Number of shards of the split.
        archive: What holds the images.
        rows: The images.
    """

    directory: Path
    store: Store
    check: Check
    split: str
    shard: int
    shards: int
    archive: Archive
    rows: Sequence[Row]


def write(task: Task) -> Shard | list[Problem]:
    """Write the files of a shard.

    Returns:
        What was written; or all corrupt images, and then the files are of no use.

    Raises:
        DataError: The images cannot be read.
        OSError: The files cannot be written.
    """
    problems: list[Problem] = []
    name = f"imagenet2012-{task.split}.array_record-{task.shard:05d}-of-{task.shards:05d}"
    path = task.directory / name

    def encoded() -> Iterator[bytes]:
        for row, data in _read(task):
            try:
                image = stored_jpeg(row.name, data, task.store, task.check)
            except images.UndecodableError as error:
                problems.append((task.archive.where(row), str(error)))
            else:
                yield records.serialise(row.name, row.label, image)

    payload = records.write(path, encoded())
    if problems:
        path.unlink()
        return problems
    return Shard(task.split, task.shard, len(task.rows), payload, task.check, files_of([path]))


def _read(task: Task) -> Iterator[tuple[Row, bytes]]:
    return zip(task.rows, task.archive.read(task.rows), strict=True)


def check_image(data: bytes, how: Check) -> None:
    """Check that an image is complete.

    Args:
        data: Contents of the file.
        how: `full` decodes it. `ends` reads the header and looks for the end marker of a JPEG, and
            decodes only an image that lacks it.

    Raises:
        UndecodableError: The image is damaged or cut off.
    """
    images.size_of(data)
    if how == "full" or not data.endswith(_JPEG_END):
        images.decode(data)


def stored_jpeg(name: str, data: bytes, store: Store, how: Check) -> bytes:
    """Return the JPEG that is stored of an image.

    Args:
        name: Name of the file; the images that TFDS re-encodes are re-encoded.
        data: Its contents.
        store: Whether the shorter side is shrunk.
        how: See `check_image`.

    Returns:
        `data` itself unless one of the two applies.

    Raises:
        UndecodableError: The image is damaged or cut off.
    """
    height, width = images.size_of(data)
    shorter = min(height, width)
    if store.shorter and shorter > store.shorter:
        size = (
            max(1, round(height * store.shorter / shorter)),
            max(1, round(width * store.shorter / shorter)),
        )
        return _encode(images.resize(images.decode(data), size, "antialias"), store.quality)
    check_image(data, how)
    if name in names.repaired() and (data.startswith(_PNG) or _is_cmyk(data)):
        # Quality, subsampling and density are TensorFlow's, so only rounding differs from TFDS.
        return _encode(images.decode(data), 100, dpi=(300, 300))
    return data


def _is_cmyk(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        return image.mode == "CMYK"


def _encode(pixels: np.ndarray, quality: int, **options: object) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(stream, "JPEG", quality=quality, subsampling="4:2:0", **options)
    return stream.getvalue()
