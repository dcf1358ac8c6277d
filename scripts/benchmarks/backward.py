"""A recipe's backward pass on one device: its gradients, and the time of each part."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.measure import require_positive
from benchmarks.training import StepWork, batches
from largebatch import parallel
from largebatch.config import Config, Facts, load, override
from largebatch.config.plan import Plan, resolve
from largebatch.config.sections import Batch, Norm, Schedule
from largebatch.models import BatchMode, Model
from largebatch.models.loss import classification_sums
from largebatch.models.tracing import shapes_of
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.training.steps import model_of
from largebatch.trees import flatten_paths

_CLASSES = 1000
PyTree = Any
Gradients = Mapping[str, jax.Array]
"""Path to (devices, …): every device's own."""


def plan_of(flags: argparse.Namespace, devices: int) -> Plan:
    """The recipe's network with one worker of --images images on each device.

    Raises:
        ConfigError: An option that does not exist, or an impossible value.
    """
    config = load(flags.config) if flags.config else Config()
    for key, text in flags.overrides:
        config = override(config, key, text)
    require_positive(flags, "images", "image_size")
    config = dataclasses.replace(
        config,
        batch=Batch(workers=devices, images_per_worker=flags.images, microbatch=1),
        norm=dataclasses.replace(config.norm, span=Norm.span),
        schedule=Schedule(length="1 steps", warmup="0 steps", peak=1.0),
    )
    shape = (flags.image_size, flags.image_size, 3)
    return resolve(config, Facts(devices * flags.images, 1, _CLASSES, shape, devices=devices))


def examples(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """A global batch of learnable synthetic images, normalised, float32, and their labels."""
    batch, size = plan.first_stage.samples_per_step, plan.facts.image_shape[0]
    work = StepWork(batch=batch, image_size=size, classes=_CLASSES)
    return batches(work, normalise=True)[0]


def loss_of(
    plan: Plan, model: Model
) -> Callable[[PyTree, PyTree, jax.Array, jax.Array], jax.Array]:
    """(params, stats, images, labels) → a device's share of the batch's mean loss, scaled."""
    stage = plan.first_stage
    mode = BatchMode(
        spans=stage.spans_per_microbatch, members=1, member_sum=lambda x: x, unbiased=True
    )

    def loss(params: PyTree, stats: PyTree, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = model.apply_train(params, stats, images, mode)
        weights = jnp.ones(labels.shape, logits.dtype)
        sums = classification_sums(logits, labels, weights, plan.config.loss.label_smoothing)
        return sums.loss * (stage.loss_scale / stage.samples_per_step)

    return loss


def device_gradients(plan: Plan, mesh: Mesh) -> Gradients:
    """Every device's own gradient of its share of the mean loss, at the initial parameters."""
    model = model_of(plan)
    loss = loss_of(plan, model)
    images, labels = (
        parallel.from_local(mesh, array[slice(*parallel.local_rows(mesh, len(array)))])
        for array in examples(plan)
    )
    params, stats = jax.jit(model.init, out_shardings=parallel.replicated(mesh))(0)

    def gradients(*arguments: object) -> Mapping[str, jax.Array]:
        flat = flatten_paths(jax.grad(loss)(*arguments))
        return {path: flat[path][None] for path, _ in shapes_of(model)}

    mapped = parallel.map_over(mesh, gradients, (REPLICATED, REPLICATED, SPLIT, SPLIT), SPLIT)
    return jax.jit(mapped)(params, stats, images, labels)
