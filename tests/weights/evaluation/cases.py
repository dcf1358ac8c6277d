"""Small networks, and random logits whose classes differ in how well they are recognized."""

import jax
import numpy as np

from largebatch.data import Unreadable
from largebatch.data.source import MEAN, STD
from largebatch.models import Model
from largebatch.weights.evaluation.classes import Matching
from largebatch.weights.evaluation.inference import per_image
from largebatch.weights.evaluation.metrics import Evaluation
from tests.weights.samples import sample

PHOTOS = {
    "mean": MEAN,
    "std": STD,
    "image_shape": (24, 24, 3),
    "evaluation_crop": 0.875,
    "origin": "random",
    "data": "",
}
outputs_of = jax.jit(per_image, static_argnums=(2, 3))


def weights(classes=("ant", "bee", "cow"), outputs=None, **fields):
    """A ResNet-10 of random weights for photographs."""
    fields = PHOTOS | fields
    channels = fields["image_shape"][2]
    count = outputs or len(classes)
    model = Model("resnet10", classes=count, channels=channels, width=4, stem="small")
    return sample(model, classes=tuple(classes), **fields)


def logits_and_labels(images=400, classes=7, seed=0):
    """The last class has no images, class 0 is never predicted."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes - 1, images).astype(np.int32)
    logits = draw.normal(size=(images, classes)).astype(np.float32)
    logits[np.arange(images), labels] += 0.4 * labels
    logits[:, 0] -= 12
    return logits, labels


def evaluation(logits, labels, smoothing=0.0, own=None):
    """An evaluation of these logits; ``own``: outputs of the data's classes, all by default."""
    classes = logits.shape[1]
    outputs = np.arange(classes) if own is None else np.asarray(own)
    account = Unreadable("validation", len(labels), 0.01)
    account.add([3], lambda example: (f"file {example}", "cut short"))
    return Evaluation(
        weights="random",
        data="drawn",
        split="validation",
        matching=Matching.of(tuple(f"kind {n}, [x]" for n in range(classes)), outputs, ""),
        outputs=jax.device_get(outputs_of(logits, labels, smoothing)),
        unreadable=account,
        preprocessing={"side": 24},
        label_smoothing=smoothing,
        seconds=2.0,
    )
