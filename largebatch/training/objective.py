"""The function that training differentiates: from images to the loss and its sums."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from largebatch import parallel
from largebatch.config.checks import possible_spans
from largebatch.config.plan import StagePlan
from largebatch.data.device_mixing import erase, mix, second_labels
from largebatch.errors import ConfigError
from largebatch.models import BatchMode, Model
from largebatch.models.loss import Partners, Sums, classification_sums
from largebatch.parallel.transfer import Augmented, Images
from largebatch.training import statistics
from largebatch.trees import flatten_paths, with_leaves, without_paths

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss of a stage on one device; without collectives, except within BatchNorm groups."""

    plan: StagePlan
    model: Model
    mean: tuple[float, ...]
    """Mean of each channel, in grey levels 0 to 255."""
    std: tuple[float, ...]
    dtype: str
    """Dtype of the pixels and sums."""
    frozen: frozenset[str]
    """Paths of parameters and of BatchNorm statistics that training does not change."""

    @property
    def mode(self) -> BatchMode:
        """How BatchNorm layers compute in training."""
        return BatchMode(
            spans=self.plan.spans_per_microbatch,
            members=self.plan.members,
            member_sum=parallel.member_sum,
            unbiased=self.plan.config.norm.running_variance == "unbiased",
            frozen=frozenset(
                map(layer_of, self.frozen & flatten_paths(self.model.shapes()[1]).keys())
            ),
        )

    def check_statistics(self) -> None:
        """Check that no BatchNorm layer has statistics of a single value, which it would subtract.

        Raises:
          ConfigError: a layer has; the message names it and the span that would do.
        """
        plan = self.plan
        if plan.span * plan.images_per_worker > 1:
            return
        shape = plan.facts.image_shape
        values = self.model.values_per_image(shape, self.mode.frozen)
        layer = next((path for path, count in values.items() if count == 1), None)
        if layer is None:
            return
        devices = plan.facts.devices
        spans = [g for g in possible_spans(plan.workers, devices) if g > 1]
        remedy = f"norm.span={spans[0]} or " if spans else ""
        raise ConfigError(
            f"norm.span={plan.config.norm.span}: expected BatchNorm statistics of at least 2 "
            f"values, got 1 value in {layer} (1 worker of batch.images_per_worker=1 image of "
            f"{shape[0]}×{shape[1]} pixels), which makes its output constant; use {remedy}"
            "batch.images_per_worker=2"
        )

    def gradients(
        self, params: PyTree, stats: PyTree, images: Images, labels: jax.Array
    ) -> tuple[PyTree, PyTree]:
        """Return the gradients of `loss` for the parameters that are not frozen, and its sums."""

        def loss(trained: PyTree) -> tuple[jax.Array, PyTree]:
            return self.loss(with_leaves(params, trained), stats, images, labels)

        return jax.grad(loss, has_aux=True)(without_paths(params, self.frozen))

    def loss(
        self, params: PyTree, stats: PyTree, images: Images, labels: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Return the scaled share of the mean loss, and (statistics, metrics) sums."""
        logits, batch = self.model.apply_train(params, stats, self.pixels(images), self.mode)
        weights = jnp.ones(labels.shape, logits.dtype)
        partners = None
        if isinstance(images, Augmented) and images.mixtures is not None:
            partners = Partners(*second_labels(labels, images.mixtures))
        sums = self.sums(logits, labels, weights, partners)
        weight = self.plan.loss_scale / self.plan.samples_per_step
        return sums.loss * weight, (statistics.sum_over_spans(batch), sums)

    def sums(
        self,
        logits: jax.Array,
        labels: jax.Array,
        weights: jax.Array,
        partners: Partners | None = None,
    ) -> Sums:
        """Return the sums of loss and hits by the options of the loss."""
        options = self.plan.config.loss
        return classification_sums(
            logits,
            labels,
            weights,
            options.label_smoothing,
            kind=options.kind,
            target_threshold=options.target_threshold,
            partners=partners,
        )

    def pixels(self, images: Images) -> jax.Array:
        """Return floats of mean 0 and deviation 1, (n, h, w, c); erase, then mix.

        Args:
          images: uint8 (n, h, w, c); of training also with what is erased and mixed.
        """
        if isinstance(images, Augmented):
            pixels = self.pixels(images.images)
            if images.erased is not None:
                pixels = erase(pixels, images.erased)
            return pixels if images.mixtures is None else mix(pixels, images.mixtures)
        mean, std = (jnp.asarray(x, self.dtype) for x in (self.mean, self.std))
        return (images.astype(self.dtype) - mean) / std


def layer_of(path: str) -> str:
    """Return the path of the layer of a statistic."""
    return path.rpartition("/")[0]
