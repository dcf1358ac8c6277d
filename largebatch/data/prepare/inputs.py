"""What is prepared: the splits of an input, in parts that become a shard each."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from largebatch.data.prepare import records
from largebatch.errors import ConfigError


class Example(NamedTuple):
    """A labelled image."""

    key: str
    """Its name in the dataset that is written."""
    image: bytes
    """Content of an image file."""
    label: int
    where: str
    """Its place in the input, for messages."""


class Split(NamedTuple):
    """A split, in the order in which it is written."""

    name: str
    """`train` or `validation`."""
    parts: Sequence[Iterable[Example]]
    """The examples of each shard; a part can be sent to another process."""
    size: int
    """Bytes of all images; it may be an estimate."""
    identity: str
    """Hash of all that is known of the images without reading them."""


class Input(NamedTuple):
    """Labelled images that become one dataset."""

    dataset: str
    """Name in TFDS's metadata: `records.IMAGENET`, or `images`."""
    classes: tuple[str, ...]
    """Name of each label."""
    splits: tuple[Split, ...]


def shard_ranges(
    split: str, images: int, size: int, shards: int, key: str = "00000000.jpg"
) -> list[tuple[int, int]]:
    """Return the first example and the one after the last of each shard, as TFDS divides a split.

    Args:
        split: Its name, for the message.
        images: Number of images, at least 1.
        size: Bytes of all images, before any re-encoding.
        shards: Number of shards; 0 chooses it by the bytes of the records, as TFDS does: 1,024 and
            64 for ImageNet.
        key: A key of usual length.

    Raises:
        ConfigError: There are fewer images than shards.
    """
    from tensorflow_datasets.core.utils import shard_utils

    if not shards:
        mean = size // images
        framing = len(records.serialise(key, 999, bytes(mean))) - mean
        total = size + images * framing
        shards = shard_utils.ShardConfig.calculate_number_shards(total, images)
    if not 0 < shards <= images:
        raise ConfigError(f"--shards: expected 1 to {images:,} {split} images, got {shards:,}")
    ends = shard_utils.get_shard_boundaries(images, shards)
    return list(zip([0, *ends[:-1]], ends, strict=True))
