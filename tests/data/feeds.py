"""Feeds of training, and comparing what two of them give."""

import numpy as np

from largebatch.data import Augment, Order, Reading, train_microbatches


def joined(parts):
    """The fields of consecutive microbatches as three long arrays."""
    parts = list(parts)
    return [np.concatenate([getattr(p, f) for p in parts]) for f in ("ids", "images", "labels")]


def training(dataset, augment, *, start=0, stop, microbatch, rows=None, order=None, **options):
    """A feed of training; `rows`: those of one process, by default all of each microbatch."""
    return train_microbatches(
        dataset,
        order or Order(3, len(dataset)),
        augment,
        start=start,
        stop=stop,
        microbatch=microbatch,
        rows=rows or (0, microbatch),
        **options,
    )


def microbatches(dataset):
    """Three microbatches of training, across the end of an epoch."""
    reading = Reading(threads=2)
    made = training(
        dataset, Augment(flip=True), start=100, stop=196, microbatch=32, reading=reading
    )
    return joined(made)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
