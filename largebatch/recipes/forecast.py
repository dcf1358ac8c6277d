"""What a plan comes to on the hardware that it is for: FLOPs, time, device-hours, and doubts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from largebatch.cluster.prediction import Prediction, Segment, Workload, predict
from largebatch.config import Config, Plan
from largebatch.config.geometry import check_workers
from largebatch.config.rates import lars_of
from largebatch.models import Model
from largebatch.recipes import ladder


def workload_of(plan: Plan, devices: int) -> Workload:
    """The work of a plan on so many devices.

    Raises:
      ConfigError: a stage's workers cannot be shared evenly by them.
    """
    config = plan.config
    for stage in plan.stages:
        check_workers(stage.workers, devices)
    return Workload(
        tuple(
            Segment(s.stage_steps, s.samples_per_step // devices, devices, s.facts.image_shape[0])
            for s in plan.stages
        ),
        plan.evaluations,
        plan.facts.validation_examples,
        evaluation_size=config.data.evaluation_size or plan.stages[-1].facts.image_shape[0],
        wire_bytes=4 if config.comm.wire == "float32" else 2,
    )


def forecast(plan: Plan, devices: int, cluster: str, round: str = "") -> Prediction:
    """The time of a plan on so many devices of a cluster of `known_clusters`.

    Args:
      plan: what is trained.
      devices: as JAX counts them.
      cluster: of which machines.
      round: MLPerf round whose software is meant; empty: the latest that is known there.

    Raises:
      ConfigError: the workers, the devices and the cluster do not fit each other.
    """
    return predict(workload_of(plan, devices), cluster, round=round)


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations; a multiplication and its addition are two."""

    of_image: float
    """Of training on one image of the first stage: forward, and twice that for backward."""
    of_training: float
    """Of the whole training, without evaluations."""


def flops_of(plan: Plan, model: Model) -> Flops:
    """FLOPs of a plan, from the products in the network's program; nothing is compiled."""
    sizes = {
        s.facts.image_shape: 3 * _forward_flops(model, s.facts.image_shape) for s in plan.stages
    }
    samples = [(s.facts.image_shape, s.stage_steps * s.samples_per_step) for s in plan.stages]
    return Flops(
        of_image=sizes[plan.facts.image_shape],
        of_training=sum(sizes[shape] * count for shape, count in samples),
    )


def _forward_flops(model: Model, shape: tuple[int, int, int]) -> float:
    model = dataclasses.replace(model, pointwise="convolution")
    params, stats = jax.eval_shape(model.init, 0)
    images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    jaxpr = jax.make_jaxpr(model.apply)(params, stats, images)
    return sum(_product_flops(equation) for equation in _equations(jaxpr.jaxpr))


def _equations(jaxpr: Any) -> list[Any]:
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += _equations(inner)
    return found


def _product_flops(equation: Any) -> float:
    if equation.primitive.name == "conv_general_dilated":
        kernel, out = equation.invars[1].aval, equation.outvars[0].aval
        # HWIO; each output element sums over the kernel's other axes.
        return 2.0 * out.size * kernel.size / kernel.shape[-1]
    if equation.primitive.name == "dot_general":
        left, right = (v.aval for v in equation.invars)
        (contracted, _), (batched, _) = equation.params["dimension_numbers"]
        summed = 1.0
        for axis in contracted:
            summed *= left.shape[axis]
        shared = 1.0
        for axis in batched:
            shared *= left.shape[axis]
        return 2.0 * left.size * right.size / (summed * shared)
    return 0.0


def doubts(config: Config, plan: Plan) -> list[str]:
    """What a user should know before this is run, each with its numbers."""
    found = []
    batch, validation = plan.samples_per_step, plan.facts.validation_examples
    largest = max(stage.samples_per_step for stage in plan.stages)
    if validation < largest:
        found.append(
            f"the validation set ({validation:,} images) is smaller than a batch ({largest:,}); it "
            "is evaluated exactly, in microbatches that are padded"
        )
    warmup = plan.schedule.warmup / plan.samples
    if warmup > 0.5:
        found.append(f"the warm-up takes {warmup:.0%} of the training, more than half")
    low, high = ladder.POINTS[0].batch, ladder.POINTS[-1].batch
    if config.optimizer.name == "lars" and not low <= batch <= high:
        found.append(
            f"a batch of {batch:,} is outside of the published points for LARS, {low:,} to {high:,}"
        )
    if plan.epoch_samples % batch and config.data.epoch_end == "continue":
        found.append(
            f"an epoch is {plan.epoch_samples / batch:.2f} steps; batches run on into the next one"
        )
    if config.optimizer.name == "lars" and not lars_of(config.optimizer).trust_skip:
        found.append("BatchNorm and biases have trust ratios too (optimizer.trust_skip is empty)")
    return found
