"""Small networks with random parameters and statistics."""

import dataclasses

import jax
import numpy as np

from largebatch.data.photos import MEAN, STD
from largebatch.models import Model
from largebatch.weights import Weights
from largebatch.weights.evaluation.settings import Wanted, settings_of

PHOTOS = {
    "mean": MEAN,
    "std": STD,
    "image_shape": (24, 24, 3),
    "evaluation_crop": 0.875,
    "resampling": "linear",
    "origin": "random",
    "data": "",
}


def weights(classes=("ant", "bee", "cow"), outputs=None, *, seed=0, **fields) -> Weights:
    """A ResNet-10 whose logits differ from class to class and image to image."""
    fields = PHOTOS | fields
    model = Model(
        "resnet10",
        classes=outputs or len(classes),
        channels=fields["image_shape"][2],
        width=4,
        stem="small",
    )
    draw = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, 0)

    def drawn(path, like):
        name = path[-1].key
        if name in ("scale", "var"):
            return draw.uniform(0.5, 1.5, like.shape).astype(np.float32)
        fan_in = np.prod(like.shape[:-1]) if like.ndim > 1 else 20.0
        return draw.normal(0, np.sqrt(2 / fan_in), like.shape).astype(np.float32)

    params, stats = jax.tree_util.tree_map_with_path(drawn, shapes)
    return Weights(model=model, params=params, stats=stats, classes=tuple(classes), **fields)


def settings(of: Weights, source="folder:x", **changes):
    """As the command would make them, with some changed."""
    made = settings_of(of, None, Wanted(source=source))
    return dataclasses.replace(made, **changes)
