"""A network on the devices, and what is kept of its output for each image.

No array of images × classes is kept. The device reduces the logits of each image to the most
probable classes and a few numbers: about 70 bytes an image.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from largebatch import parallel
from largebatch.models import Model
from largebatch.models.loss import Sums, classification_sums
from largebatch.parallel.transfer import OnDevices
from largebatch.weights import Weights
from largebatch.weights.evaluation.settings import Settings

TOP = 5


class Outputs(NamedTuple):
    """For each image of a batch; arrays of the device or of the host."""

    loss: Any
    """float32 (images,): −log of the label's probability, nats."""
    smoothed_loss: Any
    """float32 (images,): the same with smoothed labels, as in training."""
    brier: Any
    """float32 (images,): Σ over classes of (probability − target)², 0 to 2."""
    label_probability: Any
    """float32 (images,)."""
    top: Any
    """int32 (images, k): the k most probable classes; −1 if the probabilities are not finite. k is
    5, or the number of classes if there are fewer."""
    probabilities: Any
    """float32 (images, k): of `top`; NaN if they are not finite."""
    top1: Any
    """bool (images,): the label is the most probable class; False without finite probabilities."""
    top5: Any
    """bool (images,): the label is one of the five most probable classes; likewise."""


def per_image(
    logits: jax.Array, labels: jax.Array, label_smoothing: float = 0.0, top: int = TOP
) -> Outputs:
    """Reduce the logits of a batch, on the device.

    Args:
        logits: (images, classes).
        labels: int32 (images,).
        label_smoothing: Label smoothing of `Outputs.smoothed_loss`.
        top: k of `Outputs.top`.
    """

    def sums(smoothing: float) -> Sums:
        def one(logits: jax.Array, label: jax.Array) -> Sums:
            return classification_sums(logits[None], label[None], jnp.ones(1), smoothing)

        return jax.vmap(one)(logits, labels)

    plain = sums(0.0)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    probabilities = jax.nn.softmax(logits)
    target = jax.nn.one_hot(labels, logits.shape[1], dtype=probabilities.dtype)
    # By logits: rounding may make probabilities equal whose logits are not.
    _, first = jax.lax.top_k(logits, min(top, logits.shape[1]))
    finite = jnp.isfinite(probabilities).all(axis=1)  # top_k sorts NaN first, comparisons last
    return Outputs(
        loss=plain.loss,
        smoothed_loss=sums(label_smoothing).loss if label_smoothing else plain.loss,
        brier=jnp.square(probabilities - target).sum(axis=1),
        label_probability=jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0],
        top=jnp.where(finite[:, None], first, -1),
        probabilities=jnp.take_along_axis(probabilities, first, axis=1),
        top1=plain.top1 > 0,
        top5=plain.top5 > 0,
    )


class Classifier:
    """A network in evaluation mode, computed as training's evaluation computes it.

    Attributes:
        mesh: Its devices.
    """

    def __init__(
        self,
        weights: Weights,
        settings: Settings,
        mesh: Mesh,
        outputs: np.ndarray,
        *,
        only: bool = False,
        top: int = TOP,
    ) -> None:
        """Copy the weights to the devices.

        Args:
            weights: The network.
            settings: How images are prepared.
            mesh: Devices, all of this process.
            outputs: int32 (labels,): the network's output of each label of the data.
            only: Whether to use these outputs alone, which are then classes 0, 1, …
            top: Number of most probable classes to keep.
        """
        self.mesh = mesh
        model = for_platform(weights.model, settings.dtype, mesh.devices.flat[0].platform)
        columns, classes = np.arange(weights.model.classes), outputs
        if only:
            columns, classes = outputs, np.arange(len(outputs))
        trees = weights.params, weights.stats, columns.astype(np.int32), classes.astype(np.int32)
        self._replicated = jax.device_put(trees, parallel.replicated(mesh))
        same, split = parallel.REPLICATED, parallel.SPLIT

        def compute(
            params: Any,
            stats: Any,
            columns: jax.Array,
            classes: jax.Array,
            images: jax.Array,
            labels: jax.Array,
        ) -> Outputs:
            logits = logits_of(model, params, stats, images, settings)
            return per_image(logits[:, columns], classes[labels], settings.label_smoothing, top)

        specs = (same, same, same, same, split, split)
        self._compute = jax.jit(parallel.map_over(mesh, compute, specs, split))

    def __call__(self, batch: OnDevices) -> Outputs:
        """Return the outputs of each row, padding included, on the devices."""
        return self._compute(*self._replicated, batch.images, batch.labels)


def logits_of(
    model: Model, params: Any, stats: Any, images: jax.Array, settings: Settings
) -> jax.Array:
    """Return the logits (images, classes) of images as `data.evaluation_batches` gives them.

    Args:
        model: The network.
        params: Its parameters.
        stats: Its BatchNorm statistics.
        images: uint8 (images, height, width, channels).
        settings: Normalization and mirror image.
    """
    mean, std = (jnp.asarray(x, jnp.float32) for x in (settings.mean, settings.std))
    pixels = (images.astype(jnp.float32) - mean) / std
    logits = model.apply(params, stats, pixels)
    if settings.flip:
        logits = (logits + model.apply(params, stats, pixels[:, :, ::-1])) / 2
    return logits


def for_platform(model: Model, dtype: str, platform: str) -> Model:
    """Return the network with this arithmetic, in the form that is fast on the platform."""
    pointwise = "matmul" if platform == "cpu" else "convolution"
    return dataclasses.replace(model, dtype=dtype, pointwise=pointwise)
