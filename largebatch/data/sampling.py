"""Samples of the examples of a split, to compare copies of a dataset in several places."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from largebatch.data.sources import Source, identity
from largebatch.data.unreadable import as_far_as_possible
from largebatch.errors import DataError

LEAST = 64
"""Examples of a sample, and of each read."""
MOST = 1024
ENOUGH_BYTES = 2**22
"""A sample of more than this many bytes does not grow beyond `LEAST` examples."""


def sampled(source: Source, seed: int) -> Iterator[tuple[int, str]]:
    """Read a random sample of a split and yield each example with a text that identifies it.

    If a share p of the images differs between two copies, a sample of n misses all of them with a
    probability of (1 − p)ⁿ. The sample has 64 examples of a dataset of photographs (a share of
    10 % is missed with a probability of 0.1 %), up to 1,024 of small images, and every example of
    a smaller split. It depends only on the seed, on the number of examples and on their bytes.

    Args:
        source: The split.
        seed: Seed of the sample.

    Yields:
        Id of the example; its label, the size of its stored bytes and a hash of them.
    """
    ids = np.random.default_rng(seed).permutation(len(source))[:MOST]
    read = 0
    for start in range(0, len(ids), LEAST):
        if read > ENOUGH_BYTES:
            return
        some = np.sort(ids[start : start + LEAST])
        for example, (content, label) in zip(some.tolist(), _stored(source, some), strict=True):
            read += len(content)
            digest = hashlib.blake2b(content, digest_size=8).hexdigest()
            yield example, f"label {label}, {len(content):,} bytes ({digest})"


def content(train: Source, validation: Source) -> str:
    """Return a short hash that is equal only for the same images, in any directory or store.

    It covers the `identity` of both splits, and the stored bytes and the labels of 64 examples of
    each: where a share p of the images differs, it is the same with a probability of (1 − p)⁶⁴.

    Returns:
        16 hexadecimal digits (BLAKE2b); '' if a source has no stored images, or one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in (train, validation):
        if not hasattr(source, "encoded"):
            return ""
        ids = np.sort(np.random.default_rng(0).permutation(len(source))[:LEAST])
        try:
            images, labels = _read(source, ids)
        except DataError:
            return ""
        digest.update(identity(source).encode() + np.asarray(labels).astype("<i4").tobytes())
        for image in images:
            digest.update(hashlib.blake2b(_bytes(image), digest_size=8).digest())
    return digest.hexdigest()


def _stored(source: Source, ids: np.ndarray) -> list[tuple[bytes, Any]]:
    """Return the bytes and the label of each example, read one by one if one cannot be read."""
    try:
        images, labels = _read(source, ids)
    except DataError:
        if len(ids) == 1:
            return [(b"", "unknown")]
        return [found for example in ids for found in _stored(source, np.array([example]))]
    return list(zip(map(_bytes, images), labels.tolist(), strict=True))


def _bytes(image: Any) -> bytes:
    return image if isinstance(image, bytes) else np.asarray(image).tobytes()


def _read(source: Source, ids: np.ndarray) -> tuple[Sequence[Any], np.ndarray]:
    """Read images as they are stored, if the source can; otherwise as evaluation sees them."""
    if hasattr(source, "encoded"):
        return source.encoded(ids)
    return as_far_as_possible(source.read, ids)[0]
