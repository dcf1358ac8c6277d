"""Comparing what two feeds give."""

import numpy as np


def joined(parts):
    """The fields of consecutive microbatches as three long arrays."""
    parts = list(parts)
    return [np.concatenate([getattr(p, f) for p in parts]) for f in ("ids", "images", "labels")]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
