"""Feeds of training, and comparing what two of them give."""

import numpy as np

from largebatch.data import Augment, Order, Reading, train_microbatches


def joined(parts):
    """The fields of consecutive microbatches as three long arrays."""
    parts = list(parts)
    return [np.concatenate([getattr(p, f) for p in parts]) for f in ("ids", "images", "labels")]


def microbatches(dataset):
    """Three microbatches of training, across the end of an epoch."""
    order = Order(seed=3, examples=len(dataset))
    made = train_microbatches(
        dataset,
        order,
        Augment(flip=True),
        start=100,
        stop=196,
        microbatch=32,
        rows=(0, 32),
        reading=Reading(threads=2),
    )
    return joined(made)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
