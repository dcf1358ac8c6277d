"""Runs a network over every image of a split, or over files, with training's own reading.

No array of images × classes is kept. The device reduces the logits of each image to the most
probable classes and a few numbers: about 70 bytes an image.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import Config
from largebatch.models.loss import Sums, classification_sums
from largebatch.parallel import processes
from largebatch.parallel.transfer import OnDevices, computed, on_devices
from largebatch.weights.evaluation.classes import Matching
from largebatch.weights.evaluation.options import label_smoothing
from largebatch.weights.weights import Weights

TOP = 5
_PER_DEVICE = 64


class Outputs(NamedTuple):
    """For each image; arrays of the device or of the host."""

    label: Any
    """int32 (images,), among the classes of the logits."""
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

    @property
    def predicted(self) -> Any:
        """int32 (images,): the most probable class, −1 without finite probabilities."""
        return self.top[:, 0]

    @property
    def confidence(self) -> Any:
        """float32 (images,): the probability of the most probable class."""
        return self.probabilities[:, 0]


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
        label=labels,
        loss=plain.loss,
        smoothed_loss=sums(label_smoothing).loss if label_smoothing else plain.loss,
        brier=jnp.square(probabilities - target).sum(axis=1),
        label_probability=jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0],
        top=jnp.where(finite[:, None], first, -1),
        probabilities=jnp.take_along_axis(probabilities, first, axis=1),
        top1=plain.top1 > 0,
        top5=plain.top5 > 0,
    )


class Evaluator:
    """A network in evaluation mode on devices, computed as training's evaluation computes it."""

    def __init__(
        self,
        weights: Weights,
        config: Config,
        matching: Matching,
        *,
        mesh: Mesh | None = None,
        top: int = TOP,
    ) -> None:
        """Copy the weights to the devices.

        Args:
            weights: The network and its normalization, from `options.with_flags`.
            config: Preparation of images and arithmetic, likewise.
            matching: The network's output of each label.
            mesh: Devices of this process; None: all of them.
            top: Number of most probable classes to keep.
        """
        if mesh is None:
            processes.prepare_devices()
            mesh = parallel.make_mesh(jax.local_devices(), 1)
        self._mesh, self._options = mesh, config.data
        model = dataclasses.replace(weights.model, dtype=config.model.dtype)
        model = model.on(mesh.devices.flat[0].platform)
        mean, std = (np.asarray(x, np.float32) for x in (weights.mean, weights.std))
        trees = weights.params, weights.stats, matching.columns, matching.outputs
        self._replicated = jax.device_put(trees, parallel.replicated(mesh))
        flip, smoothing = config.data.evaluation_flip, label_smoothing(config)

        def compute(
            params: Any,
            stats: Any,
            columns: jax.Array,
            classes: jax.Array,
            images: jax.Array,
            labels: jax.Array,
        ) -> Outputs:
            pixels = (images.astype(jnp.float32) - mean) / std
            logits = model.evaluate(params, stats, pixels, flip=flip)
            return per_image(logits[:, columns], classes[labels], smoothing, top)

        same, split = parallel.REPLICATED, parallel.SPLIT
        specs = (same, same, same, same, split, split)
        self._compute = jax.jit(parallel.map_over(mesh, compute, specs, split))

    def __call__(self, batch: OnDevices) -> Outputs:
        """Return the outputs of each row, padding included, on the devices."""
        return self._compute(*self._replicated, batch.images, batch.labels)

    def batches(
        self, dataset: data.Dataset, unreadable: data.Unreadable, batch: int = 0
    ) -> Generator[tuple[np.ndarray, Outputs]]:
        """Run the network over a dataset, batch by batch.

        Args:
            dataset: The images.
            unreadable: Counts corrupt images, which are evaluated as the mean grey.
            batch: Rows at a time; 0 for 64 a device.

        Yields:
            Ids and outputs of each batch, on the host and without padding.

        Raises:
            DataError: An image cannot be read, or too many are corrupt.
        """
        rows, reading = batch_size(len(dataset), self._mesh.size, batch), data.Reading.of()
        views = data.evaluation_views(
            dataset,
            reading,
            self._options.evaluation_size,
            rectangular=self._options.rectangular,
        )
        batches = data.evaluation_batches(
            dataset,
            batch=rows,
            rows=(0, rows),
            reading=reading,
            views=views,
            unreadable=unreadable,
        )
        ids = (view.ids[at : at + rows] for view in views for at in range(0, len(view.ids), rows))
        with contextlib.closing(on_devices(self._mesh, batches)) as sent:
            for chosen, found in zip(ids, computed(sent, self), strict=True):
                yield chosen, Outputs(*(field[: len(chosen)] for field in found))

    def evaluate(
        self,
        dataset: data.Dataset,
        unreadable: data.Unreadable,
        batch: int = 0,
        advance: Callable[[int], None] = lambda images: None,
    ) -> Outputs:
        """Return the outputs of a complete split, by id; arguments as for `batches`.

        Args:
            dataset: The images.
            unreadable: Counts corrupt images.
            batch: Rows at a time.
            advance: Called after each batch with its number of images.
        """
        ids, outputs = [], []
        for chosen, found in self.batches(dataset, unreadable, batch):
            ids.append(chosen)
            outputs.append(found)
            advance(len(chosen))
        order = np.argsort(np.concatenate(ids))  # rectangular images come by their shapes
        return Outputs(*(np.concatenate(field)[order] for field in zip(*outputs, strict=True)))


def batch_size(images: int, devices: int, requested: int = 0) -> int:
    """Return the rows of a batch: a multiple of the devices, no more than the images need.

    Args:
        images: Number of images in all.
        devices: That share a batch.
        requested: Rows; 0 for 64 a device.
    """
    rows = min(requested or _PER_DEVICE * devices, images)
    return -(-rows // devices) * devices


def predictions(
    evaluator: Evaluator, dataset: data.Dataset, classes: tuple[str, ...], batch: int = 0
) -> Generator[dict[str, Any]]:
    """Predict each image, in order, as soon as its batch is computed.

    Args:
        evaluator: Keeps as many classes as are to be named.
        dataset: The images.
        classes: Names of the outputs.
        batch: Images at a time; 0 for 64 a device.

    Yields:
        ``{"top": [{"class": …, "label": …, "probability": …}, …]}``, most probable first, or
        ``{"error": …}``.
    """
    unreadable = data.Unreadable("files", len(dataset), share=1.0)
    ready: dict[int, dict[str, Any]] = {}
    following = 0
    for ids, outputs in evaluator.batches(dataset, unreadable, batch):
        errors = {each.example: each.reason for each in unreadable.found}
        for row, example in enumerate(ids.tolist()):
            guesses = zip(outputs.top[row], outputs.probabilities[row], strict=True)
            top = [
                {"class": classes[label], "label": int(label), "probability": float(probability)}
                for label, probability in guesses
                if label >= 0
            ]
            error = errors.get(example) or ("" if top else "the logits are not finite")
            ready[example] = {"error": error} if error else {"top": top}
        while following in ready:  # rectangular images are computed in the order of their shapes
            yield ready.pop(following)
            following += 1
