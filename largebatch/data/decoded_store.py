"""The format of a store of decoded images: its files, their writer and the index.

A store is a directory. Shard i of n of a split is three NumPy files: `SPLIT-images-i-of-n.npy`
(uint8 (examples, S, S, 3)), `SPLIT-labels-…` (int32 (examples,)) and `SPLIT-sizes-…` (int32
(examples, 2), height and width of the original images, each of which was resized to S×S).
`index.json` lists the shards and is written last: a store without it is unfinished.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from largebatch.errors import DataError
from largebatch.files import replacing, write_json

INDEX_FILE = "index.json"
_FORMAT = {"format": "largebatch decoded images", "version": 1}


@dataclass(frozen=True)
class ShardFacts:
    """The entry of a shard in the index.

    Attributes:
        file: Name of its file of images.
        examples: Number of examples.
        sha256: Of that file, hexadecimal.
    """

    file: str
    examples: int
    sha256: str


def write_shard(
    directory: Path,
    split: str,
    shard: int,
    shards: int,
    images: Iterable[np.ndarray],
    labels: Sequence[int],
    sizes: Sequence[tuple[int, int]],
) -> ShardFacts:
    """Write the three files of a shard, in the memory of one image.

    Each file appears completely or not at all; the file of images appears last.

    Args:
        directory: The store; created if absent.
        split: `train` or `validation`.
        shard: Number of the shard, in [0, shards).
        shards: Number of shards of the split.
        images: The images, uint8 (S, S, 3) each; one for each label.
        labels: Index of each image's class.
        sizes: Height and width of each original image; read after the last image, so that
            `images` may fill it.

    Returns:
        The entry for `write_index`.

    Raises:
        ValueError: There are no images, or not one for each label and size, or of several shapes.
    """
    if not len(labels):
        raise ValueError("0 labels")
    path = directory / file_name(split, "images", shard, shards)
    digest = hashlib.sha256()
    written = 0
    with replacing(path) as stream:
        for image in images:
            if not written:
                shape = (image.shape[0], image.shape[0], 3)
                header = _header((len(labels), *shape))
                digest.update(header)
                stream.write(header)
            if image.shape != shape or image.dtype != np.uint8:
                raise ValueError(
                    f"{path.name}: image {written} is {image.dtype} {image.shape}, "
                    f"not uint8 {shape}"
                )
            pixels = np.ascontiguousarray(image)
            digest.update(pixels)
            stream.write(pixels)
            written += 1
        if written != len(labels):
            raise ValueError(f"{path.name}: {written} images but {len(labels)} labels")
        columns = {"labels": np.array(labels, np.int32), "sizes": np.array(sizes, np.int32)}
        if columns["sizes"].shape != (len(labels), 2):
            raise ValueError(f"{len(labels)} labels and sizes of shape {columns['sizes'].shape}")
        for what, column in columns.items():
            with replacing(directory / file_name(split, what, shard, shards)) as beside:
                np.save(beside, column)
    return ShardFacts(path.name, written, digest.hexdigest())


def write_index(
    directory: Path, *, size: int, classes: tuple[str, ...], shards: dict[str, list[ShardFacts]]
) -> None:
    """Write `index.json`, which completes the store.

    Args:
        directory: The store, all of whose shards are written.
        size: S, pixels a side.
        classes: Name of each label.
        shards: For each split all of its shards, in their order.

    Raises:
        ValueError: A split lacks a shard or has them in another order.
    """
    for split, facts in shards.items():
        expected = [file_name(split, "images", i, len(facts)) for i in range(len(facts))]
        if not facts or [shard.file for shard in facts] != expected:
            raise ValueError(f"{split}: the shards are not the {len(facts)} of the split in order")
    splits = {split: [asdict(shard) for shard in facts] for split, facts in shards.items()}
    write_json(
        directory / INDEX_FILE, _FORMAT | {"size": size, "classes": classes, "splits": splits}
    )


@dataclass(frozen=True)
class Index:
    """The contents of `index.json`.

    Attributes:
        size: S, pixels a side.
        classes: Name of each label.
        splits: For each split its shards.
    """

    size: int
    classes: tuple[str, ...]
    splits: dict[str, tuple[ShardFacts, ...]]


def read_index(directory: Path) -> Index:
    """Read the index of a store.

    Raises:
        DataError: There is no finished store, or it has another format.
    """
    path = directory / INDEX_FILE
    try:
        content = json.loads(path.read_bytes())
        found = {key: content[key] for key in _FORMAT}
        if found == _FORMAT:
            splits = {
                split: tuple(ShardFacts(**facts) for facts in shards)
                for split, shards in content["splits"].items()
            }
            return Index(content["size"], tuple(content["classes"]), splits)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is absent: the store is unfinished, or this is another directory; "
            "finish its preparation or correct the path"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not the index of a decoded store; prepare the store again"
        ) from error
    raise DataError(f"{path}: expected {_FORMAT}, got {found}; prepare the store again")


def file_name(split: str, what: str, shard: int, shards: int) -> str:
    """Return the name of the file of a shard's `images`, `labels` or `sizes`."""
    return f"{split}-{what}-{shard:05d}-of-{shards:05d}.npy"


def unreadable(path: Path | str, error: OSError) -> DataError:
    """Return the exception for a file of a store that cannot be read."""
    return DataError(f"{path} cannot be read ({error.strerror}); restore it or prepare it again")


def _header(shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file of uint8."""
    stream = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()
