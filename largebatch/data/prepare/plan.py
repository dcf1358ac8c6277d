"""What is stored of each image, and the order and shards of a split: those that TFDS chooses."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import __version__ as pillow_version

from largebatch.data.prepare import records
from largebatch.data.prepare.archives import Archive, Row
from largebatch.errors import ConfigError

# Bytes that ArrayRecord adds: to each record (measured: 84 to 105), and to fill blocks of 64 KiB.
_RECORD_OVERHEAD, _SHARD_OVERHEAD = 128, 2 << 16


@dataclass(frozen=True)
class Store:
    """What is stored of each image.

    Attributes:
        shorter: Pixels of the shorter side, to which larger images are shrunk; 0 stores the file
            as it is.
        quality: Quality of shrunk JPEGs, 1 to 100.

    Raises:
        ConfigError: An option is missing or out of range.
    """

    shorter: int = 0
    quality: int = 0

    def __post_init__(self) -> None:
        if bool(self.shorter) != bool(self.quality):
            raise ConfigError("--shorter and --quality: use both or neither, such as 256 and 90")
        if self.shorter and not (8 <= self.shorter <= 4096 and 1 <= self.quality <= 100):
            raise ConfigError(
                "--shorter and --quality: expected 8 to 4096 and 1 to 100, got "
                f"{self.shorter} and {self.quality}"
            )

    def describe(self) -> str:
        """Return one line, which differs where the bytes may differ."""
        if self.shorter:
            return (
                f"JPEG, shorter side at most {self.shorter}, quality {self.quality} 4:2:0 "
                f"by Pillow {pillow_version}"
            )
        return "JPEG as is"


@dataclass(frozen=True)
class Split:
    """A split, ready to be written.

    Attributes:
        name: `train` or `validation`.
        archive: What holds its images.
        rows: Its images in the order in which they are written.
        ends: For each shard, the number of images up to its end.
    """

    name: str
    archive: Archive
    rows: Sequence[Row]
    ends: tuple[int, ...]

    def shard(self, number: int) -> Sequence[Row]:
        """Return the images of a shard."""
        return self.rows[self.ends[number - 1] if number else 0 : self.ends[number]]


def split(name: str, archive: Archive, rows: Sequence[Row], shards: int = 0) -> Split:
    """Order the images of a split and divide them into shards, both as TFDS does.

    TFDS sorts by the MD5 of the split's name followed by the image's, and chooses the number of
    shards by the bytes of all records: 1,024 and 64 for ImageNet. The bytes are those before any
    re-encoding, so every store has the same images in the same shards.

    Args:
        name: `train` or `validation`.
        archive: What holds the images.
        rows: The images, in any order.
        shards: Number of shards; 0 is that of TFDS.

    Raises:
        ConfigError: There are fewer images than shards.
    """
    from tensorflow_datasets.core.hashing import Hasher

    hasher, count = Hasher(name), len(rows)
    rows = sorted(rows, key=lambda row: hasher.hash_key(row.name))
    ends = shard_ends(count, _record_bytes(rows), shards, what=f"{name} images")
    return Split(name, archive, rows, ends)


def shard_ends(
    examples: int, size: int, shards: int = 0, *, what: str = "images"
) -> tuple[int, ...]:
    """Return the number of examples up to the end of each shard, as TFDS divides them.

    Args:
        examples: Number of examples.
        size: Their bytes.
        shards: Number of shards; 0 chooses it by the bytes, as TFDS does.
        what: The examples, for the message.

    Raises:
        ConfigError: There are fewer examples than shards.
    """
    from tensorflow_datasets.core.utils import shard_utils

    shards = shards or shard_utils.ShardConfig.calculate_number_shards(size, examples)
    if not 0 < shards <= examples:
        raise ConfigError(
            f"--shards: expected at most the number of {what}, {examples}, got {shards}"
        )
    return tuple(shard_utils.get_shard_boundaries(examples, shards))


def identity(store: Store, splits: Sequence[Split]) -> dict[str, str]:
    """Return all that the bytes of the shards depend on, in words."""
    together = {"store": store.describe()}
    for one in splits:
        labels = np.array([row.label for row in one.rows], np.int32)
        digest = hashlib.sha256(np.array([row.name for row in one.rows], "S32").tobytes())
        digest.update(labels.tobytes())
        together[f"{one.name} images"] = f"{len(one.rows):,} (names {digest.hexdigest()[:16]})"
        together[f"{one.name} shards"] = f"{len(one.ends):,}"
    return together


def disk_bytes(split: Split, *, ratio: float) -> int:
    """Estimate the disk space of a split, in bytes, rounded up.

    Args:
        split: Split of the images.
        ratio: Mean bytes of a re-encoded image over those of the original.
    """
    images, shards = len(split.rows), _SHARD_OVERHEAD * len(split.ends)
    kept = sum(row.size for row in split.rows)
    framing = _record_bytes(split.rows) - kept + _RECORD_OVERHEAD * images
    return int(kept * ratio) + framing + shards


def _record_bytes(rows: Sequence[Row]) -> int:
    """Bytes of all records; what a record adds to its image is that of one of the mean size."""
    kept = sum(row.size for row in rows)
    mean = kept // len(rows)
    return kept + len(rows) * (len(records.serialise(rows[0].name, 999, bytes(mean))) - mean)
