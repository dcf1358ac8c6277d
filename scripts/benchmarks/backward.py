"""A recipe's backward pass on one device: its gradients, and the time of each part."""

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.competitor import Figures, interleave
from benchmarks.measure import environment, require_positive
from benchmarks.training import StepWork, batches
from largebatch import parallel
from largebatch.config import Config, Facts, Plan, load, override, resolve
from largebatch.config.sections import Batch, Norm, Schedule
from largebatch.models import BatchMode, Model
from largebatch.models.loss import classification_sums
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.parallel.backward_times import BackwardProfile, estimate, shapes_of
from largebatch.parallel.hardware import HARDWARE, hardware_of
from largebatch.parallel.timing import Gradients
from largebatch.training.steps import model_of
from largebatch.trees import flatten_paths, unflatten_paths

_CLASSES = 1000
PyTree = Any


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


def parts_of(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """The paths by residual block, in their order; stem and head are parts of their own."""

    def part(path: str) -> list[str]:
        names = path.split("/")
        return names[: 4 if names[0] == "stages" else 1]

    return [tuple(members) for _, members in groupby(paths, key=part)]


def shared_out(
    parts: Sequence[Sequence[str]], ends: Sequence[float], guess: Mapping[str, float]
) -> dict[str, float]:
    """Seconds of each parameter, in the order of backward.

    Args:
        parts: Paths, in the order of the forward pass.
        ends: Seconds until forward ends, backward of the last part, …, backward of the first.
        guess: Seconds of each parameter, for the shares within a part.
    """
    # Noise may let a longer program end sooner; its part then takes nothing.
    took = np.diff(np.maximum.accumulate(ends))
    seconds = {}
    for part, whole in zip(reversed(parts), took, strict=True):
        guessed = sum(guess[path] for path in part)
        seconds |= {path: float(whole * guess[path] / guessed) for path in reversed(part)}
    return seconds


def profile(plan: Plan, repeats: int) -> tuple[BackwardProfile, list[list[float]]]:
    """Seconds of backward, gradient by gradient, on the first local device.

    A gradient with respect to the parameters of the last parts alone ends where the first of these
    is complete: the compiler drops the rest. Its time less that of one part fewer is the time of
    that part. Within a part seconds are shared out as `estimate` has them.

    Args:
        plan: Plan of one device.
        repeats: Number of repeats of all programs, interleaved, after one of each.

    Returns:
        The profile, from medians, and the repeats in ms: of the forward pass, then of the program
        that ends with each part, from the last part on.
    """
    model = model_of(plan)
    shapes = shapes_of(model)
    parts = parts_of([path for path, _ in shapes])
    device = jax.local_devices()[0]
    params, stats = jax.jit(model.init)(0)
    flat, *others = jax.device_put((flatten_paths(params), stats, *examples(plan)), device)
    loss = loss_of(plan, model)

    def program(differentiated: Sequence[str]) -> Callable[[], Figures]:
        def of(part: PyTree, rest: PyTree, stats: PyTree, images: Any, labels: Any) -> jax.Array:
            return loss(unflatten_paths({**rest, **part}), stats, images, labels)

        part = {path: flat[path] for path in differentiated}
        rest = {path: x for path, x in flat.items() if path not in part}
        compiled = jax.jit(jax.grad(of) if part else of).lower(part, rest, *others).compile()

        def repeat() -> Figures:
            start = time.perf_counter()
            jax.block_until_ready(compiled(part, rest, *others))
            return {"ms": 1e3 * (time.perf_counter() - start)}

        repeat()
        return repeat

    last = [sum(parts[i:], ()) for i in range(len(parts), -1, -1)]  # none, the head's, …, all
    found = interleave({str(i): program(paths) for i, paths in enumerate(last)}, repeats)
    times = [[one["ms"] for one in each] for each in found.values()]
    setting = {
        "images": plan.first_stage.local_images,
        "image_shape": plan.facts.image_shape,
        "dtype": plan.config.model.dtype,
    }
    hardware = hardware_of(device.device_kind) or HARDWARE["cpu"]
    ends = [median(each) / 1e3 for each in times]
    kept = BackwardProfile(
        seconds=shared_out(parts, ends, estimate(shapes, hardware, **setting).seconds),
        source="measured",
        hardware=device.device_kind,
        versions=environment()["versions"],
        **setting,
    )
    return kept, times
