"""A small decoded store on disk, and what it holds."""

from dataclasses import replace

import numpy as np

from largebatch.data.decoded import open_decoded
from largebatch.data.decoded_store import write_index, write_shard
from largebatch.data.sources import SourceOptions

SIZE = 48
CLASSES = ("ant", "bee", "cow")
SHARDS = {"train": (5, 4, 1), "validation": (6,)}
OPTIONS = SourceOptions(image_size=40, evaluation_crop=0.8)


def contents(split):
    """Images, labels and sizes of a split, from nothing but its name."""
    rng = np.random.default_rng(len(split))
    n = sum(SHARDS[split])
    images = rng.integers(0, 256, (n, SIZE, SIZE, 3), dtype=np.uint8)
    return images, rng.integers(0, 3, n), rng.integers(20, 90, (n, 2))


def write(directory, split):
    """The facts of the shards of a split, written."""
    rows = zip(*contents(split), strict=True)
    facts = []
    for shard, examples in enumerate(SHARDS[split]):
        images, labels, sizes = zip(*(next(rows) for _ in range(examples)), strict=True)
        facts.append(
            write_shard(directory, split, shard, len(SHARDS[split]), iter(images), labels, sizes)
        )
    return facts


def make(directory):
    """A finished store."""
    shards = {split: write(directory, split) for split in SHARDS}
    write_index(directory, size=SIZE, classes=CLASSES, shards=shards)
    return directory


def opened(store, split="train", **options):
    return open_decoded(f"decoded:{store}", split, replace(OPTIONS, **options))


def drawn(ids):
    """Seed and epochs of a reading for training."""
    return {"seed": 3, "epochs": np.arange(len(ids)) % 4}
