"""Weights of which every array is random, statistics and affine parameters too."""

import numpy as np

from largebatch.models import Model
from largebatch.trees import unflatten_paths
from largebatch.weights import Weights
from largebatch.weights.names import shapes
from largebatch.weights.weights import by_path

SMALL = Model("resnet10", classes=5, channels=1, width=4, stem="small")
TINY = Model("resnet50", classes=7, channels=3, width=4)


def drawn(rng, path, shape):
    """Values of a size that keeps the logits of deep networks near 1."""
    match path.rpartition("/")[2]:
        case "var":
            values = rng.uniform(0.5, 1.5, shape)
        case "scale":
            values = rng.uniform(0.5, 1.0, shape)
        case "kernel":
            values = rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))
        case _:
            values = rng.normal(size=shape) * 0.1
    return values.astype(np.float32)


def sample(model=SMALL, seed=0, **changes):
    """Weights whose classes, normalization and other fields differ from the defaults."""
    rng = np.random.default_rng(seed)
    params, stats = (
        unflatten_paths({path: drawn(rng, path, shape) for path, shape in group.items()})
        for group in shapes(model)
    )
    side = 16 if model.stem == "small" else 64
    fields = {
        "model": model,
        "params": params,
        "stats": stats,
        "classes": tuple(f"class {i} ä" for i in range(model.classes)),
        "mean": tuple(100.0 + i for i in range(model.channels)),
        "std": tuple(50.5 + i for i in range(model.channels)),
        "image_shape": (side, side, model.channels),
        "evaluation_crop": 0.9,
        "resampling": "linear",
        "origin": "drawn",
        "data": "tfds:somewhere",
    }
    return Weights(**fields | changes)


def same(one, other):
    """Whether two weights have bitwise the same arrays by the same names in the same order."""
    ours, theirs = by_path(one), by_path(other)
    return list(ours) == list(theirs) and all(
        ours[path].dtype == theirs[path].dtype and ours[path].tobytes() == theirs[path].tobytes()
        for path in ours
    )
