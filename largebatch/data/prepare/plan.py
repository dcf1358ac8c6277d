"""Order and shards: what TFDS would choose, whatever the parallelism."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import __version__ as pillow_version

from largebatch.data.prepare import records
from largebatch.data.prepare.members import Archive, Members
from largebatch.errors import ConfigError

# ArrayRecord's own bytes: for each record (measured: 84 to 105), and to fill blocks of 64 KiB.
_RECORD_OVERHEAD, _SHARD_OVERHEAD = 128, 2 << 16


@dataclass(frozen=True)
class Store:
    """What is kept of each image.

    Attributes:
        kind: `jpeg`: the files; `decoded`: pixels.
        shorter: Of a JPEG, pixels of the shorter side, larger ones shrunk; 0 keeps the file.
        quality: Of those that are shrunk, 1 to 100.
        size: Of decoded pixels, pixels a side.
    """

    kind: Literal["jpeg", "decoded"] = "jpeg"
    shorter: int = 0
    quality: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        """Checks the combination.

        Raises:
            ConfigError: An option is missing, out of range or not one of this kind.
        """
        if self.kind == "decoded":
            if self.shorter or self.quality:
                raise ConfigError("--shorter and --quality belong to --store jpeg; leave them out")
            if not 8 <= self.size <= 4096:
                raise ConfigError(f"--store decoded needs --size from 8 to 4096, not {self.size}")
            return
        if self.size:
            raise ConfigError("--size belongs to --store decoded; for JPEGs say --shorter")
        if bool(self.shorter) != bool(self.quality):
            raise ConfigError("--shorter and --quality go together, such as 256 and 90")
        if self.shorter and not (8 <= self.shorter <= 4096 and 1 <= self.quality <= 100):
            raise ConfigError(
                f"--shorter is {self.shorter}, --quality {self.quality}; "
                "the ranges are 8 to 4096 and 1 to 100"
            )

    def describe(self) -> str:
        """One line; it differs where the bytes may."""
        if self.kind == "decoded":
            return f"decoded to {self.size}×{self.size} by Pillow {pillow_version}"
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
        members: They, in the order in which they are written.
        ends: For each shard the number of images up to and with it.
    """

    name: str
    archive: Archive
    members: Members
    ends: tuple[int, ...]

    def shard(self, number: int) -> Members:
        """The images of a shard."""
        return self.members.take(slice(self.ends[number - 1] if number else 0, self.ends[number]))

    def identity(self) -> dict[str, str]:
        """What must be the same for a shard to be the same, in words."""
        digest = hashlib.sha256(self.members.names.tobytes() + self.members.labels.tobytes())
        return {
            f"{self.name} images": f"{len(self.members):,} (names {digest.hexdigest()[:16]})",
            f"{self.name} shards": f"{len(self.ends):,}",
        }


def split(name: str, archive: Archive, members: Members, shards: int = 0) -> Split:
    """Orders the images of a split and cuts it into shards, both as TFDS does.

    TFDS sorts by the MD5 of the split's name followed by the image's, and chooses the number of
    shards by the bytes of all records: 1,024 and 64 for ImageNet. Bytes are counted before any
    repair or re-encoding, so every kind of store has the same images in the same shards.

    Args:
        name: `train` or `validation`.
        archive: What holds the images.
        members: In any order.
        shards: How many; 0 is as TFDS.

    Returns:
        The split.

    Raises:
        ConfigError: There are fewer images than shards.
    """
    from tensorflow_datasets.core.utils import shard_utils

    members = members.take(order(members.names, name))
    total = int(records.lengths(members).sum())
    shards = shards or shard_utils.ShardConfig.calculate_number_shards(total, len(members))
    if not 0 < shards <= len(members):
        raise ConfigError(f"--shards is {shards} for {len(members)} {name} images; lower it")
    return Split(
        name, archive, members, tuple(shard_utils.get_shard_boundaries(len(members), shards))
    )


def order(names: np.ndarray, split: str) -> np.ndarray:
    """The order in which TFDS writes.

    Args:
        names: bytes (n,), the files' names.
        split: Its name, the salt.

    Returns:
        int64 (n,): which image comes first, second, …
    """
    from tensorflow_datasets.core.hashing import Hasher

    hasher = Hasher(split)
    keys = [hasher.hash_key(name) for name in names.tolist()]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def identity(store: Store, splits: Sequence[Split]) -> dict[str, str]:
    """What a preparation must share with another to go on with its shards."""
    together = {"store": store.describe()}
    for one in splits:
        together |= one.identity()
    return together


def disk_bytes(store: Store, split: Split, *, ratio: float) -> int:
    """Disk space that a split needs.

    Args:
        store: What is kept.
        split: Of what.
        ratio: Bytes of a re-encoded image over those of the original, on average.

    Returns:
        Bytes, a little more than in the end.
    """
    images = len(split.members)
    if store.kind == "decoded":
        return images * (3 * store.size**2 + 12) + _SHARD_OVERHEAD * len(split.ends)
    kept = int(split.members.sizes.sum())
    framing = int(records.lengths(split.members).sum()) - kept + _RECORD_OVERHEAD * images
    return int(kept * ratio) + framing + _SHARD_OVERHEAD * len(split.ends)
