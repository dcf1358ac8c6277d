"""FLOPs, time, input rate and warnings of a plan on its hardware."""

import dataclasses

import jax
import jax.numpy as jnp

from largebatch.config import Config
from largebatch.config.checks import check_microbatch, check_workers, microbatch_choices
from largebatch.config.plan import Plan, StagePlan
from largebatch.errors import ConfigError, counted
from largebatch.models import DEPTHS, Model
from largebatch.models.tracing import equations, product_flops
from largebatch.optim.lars import lars_of
from largebatch.parallel.clusters import Cluster, Hardware, machine
from largebatch.planning import ladder
from largebatch.planning.calibration import table
from largebatch.planning.prediction import (
    Prediction,
    Segment,
    Workload,
    is_calibrated,
    load_fitted,
    predict,
)
from largebatch.planning.step_time import Site

LEAST_SIZE = 96
"""Side of the smallest images with a prediction; the fitted runs had 128 and more."""
_MEASURE = "measure steps instead: train.py --dry_run"


def why_no_forecast(plan: Plan) -> str:
    """Return why no time can be predicted for a plan on any hardware; empty if one can."""
    name = plan.config.model.name
    if name not in DEPTHS:
        return f"no prediction for model.name={name}: the cost model knows ResNets; {_MEASURE}"
    size = min(stage.facts.image_shape[0] for stage in plan.stages)
    if size < LEAST_SIZE:
        return (
            "data.image_size: the cost model is fitted to photographs of 128 to 256 pixels, got "
            f"{size}; {_MEASURE}"
        )
    return ""


def network_of(model: Model) -> Model:
    """Return a network without what changes only its program, as the cost model takes it."""
    return dataclasses.replace(model, form="plain", remat="none", blur_pool=False)


def workload_of(plan: Plan, model: Model, devices: int) -> Workload:
    """Return the work of a plan on a number of devices.

    Raises:
      ConfigError: no time can be predicted for it, the devices cannot share a stage's workers
        evenly, or ``batch.microbatch`` does not divide them.
    """
    if why := why_no_forecast(plan):
        raise ConfigError(why)
    config = plan.config
    segments = [
        Segment(
            stage.steps,
            stage.samples_per_step // devices,
            devices,
            stage.facts.image_shape[0],
            passes_of(stage, devices),
        )
        for stage in plan.stages
    ]
    return Workload(
        tuple(segments),
        plan.evaluations,
        plan.facts.validation_examples,
        evaluation_size=config.data.evaluation_size or plan.stages[-1].facts.image_shape[0],
        network=network_of(model),
        wire_bytes=config.comm.wire_bytes,
    )


def passes_of(stage: StagePlan, devices: int) -> int:
    """Return the microbatches of a stage on each device; 1 if the start of the run chooses them.

    Raises:
      ConfigError: the devices cannot share the workers, or ``batch.microbatch`` does not fit.
    """
    check_workers(stage.workers, devices)
    microbatch = stage.config.batch.microbatch
    if microbatch == "auto":
        return 1
    fitting = microbatch_choices(stage.workers, devices, stage.span)
    check_microbatch(microbatch, stage.workers, devices, stage.span, fitting)
    return stage.workers // devices // microbatch


def forecast(plan: Plan, model: Model, devices: int, cluster: str, round: str = "") -> Prediction:
    """Predict the time of a plan on devices of a cluster of `known_clusters`.

    Args:
      plan: the run.
      model: its network.
      devices: as JAX counts them.
      cluster: name of the cluster.
      round: MLPerf round of the software; empty: the latest that is known there.

    Raises:
      ConfigError: see `workload_of`; or the cluster does not have such devices.
    """
    return predict(workload_of(plan, model, devices), cluster, round=round)


def assumptions(plan: Plan, model: Model, devices: int, hardware: Hardware) -> list[str]:
    """Return what a predicted time scales or leaves out."""
    found, chosen = [], plan.config.model
    network = network_of(model)
    if not is_calibrated(network, hardware):
        found.append(
            f"the time is not calibrated for model.name={chosen.name}, model.width={chosen.width}, "
            f"model.dtype={chosen.dtype} on {hardware.name}: it is scaled by FLOPs, bytes and "
            "gradient bytes from published runs of ResNet-50 in 16 bits"
        )
    for name, value, usual in (
        ("model.remat", chosen.remat, "none"),
        ("model.blur_pool", chosen.blur_pool, False),
    ):
        if value != usual:
            found.append(f"the time leaves out the work that {name}={value} adds")
    if plan.config.batch.microbatch == "auto" and plan.first_stage.workers > devices:
        year, parameters = max(table().rounds.values()), load_fitted().parameters
        each = Site(parameters, Cluster(hardware, 1), year, network).overhead_s
        images = plan.first_stage.samples_per_step // devices
        found.append(
            f"the time is for one microbatch of {images:,} images on each device; "
            f"batch.microbatch=auto decides at the start, and each further microbatch adds about "
            f"{1e3 * each:.1f} ms to a step"
        )
    return found


@dataclasses.dataclass(frozen=True)
class InputNeed:
    """The rate of input at which devices never wait."""

    images_per_s: float
    """Decoded images of each host."""
    hosts: int
    cores: dict[str, float]
    """Cores of each host, by the form in which images are stored."""

    @property
    def text(self) -> str:
        """The need in words."""
        cores = ", ".join(f"{round(count) or 1:,} for {form}" for form, count in self.cores.items())
        return (
            f"{self.images_per_s:,.0f} images/s on each of {counted(self.hosts, 'host')}; "
            f"CPU cores of each: {cores}"
        )


IMAGES_PER_CPU_S = {
    "full-size JPEGs": 862.0,
    "JPEGs of 256 pixels": 2054.0,
}
"""Training images that one core prepares in a second: records/2026-11-21_input_full_cpu.json
and …_side256_cpu.json, medians on one core of an AMD EPYC."""


def input_need(images_per_s: float, hosts: int) -> InputNeed:
    """Return the need of a training of this rate on a number of hosts."""
    each = images_per_s / hosts
    return InputNeed(each, hosts, {form: each / rate for form, rate in IMAGES_PER_CPU_S.items()})


def hosts_of(devices: int, cluster: str) -> int:
    """Return the number of hosts of devices of a named cluster."""
    of = machine(cluster)
    return -(-devices // (of.devices_per_node or of.hardware.devices_per_node))


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations; a multiplication and its addition are two."""

    of_image: float
    """Training on one image of the first stage: forward, and twice that for backward."""
    of_training: float
    """The whole training, without evaluations."""


def flops_of(plan: Plan, model: Model) -> Flops:
    """Count the FLOPs of a plan from the products in the network's program, without compiling."""
    shapes = [stage.facts.image_shape for stage in plan.stages]
    each = {shape: 3 * _forward_flops(model, shape) for shape in set(shapes)}
    training = sum(
        each[shape] * stage.steps * stage.samples_per_step
        for shape, stage in zip(shapes, plan.stages, strict=True)
    )
    return Flops(of_image=each[plan.facts.image_shape], of_training=training)


def _forward_flops(model: Model, shape: tuple[int, int, int]) -> float:
    model = dataclasses.replace(model, form="plain")
    params, stats = model.shapes()
    images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    jaxpr = jax.make_jaxpr(model.apply)(params, stats, images)
    return sum(product_flops(equation) for equation in equations(jaxpr.jaxpr))


def doubts(config: Config, plan: Plan) -> list[str]:
    """Return warnings about a plan, each with its numbers."""
    found = []
    batch, validation = plan.first_stage.samples_per_step, plan.facts.validation_examples
    largest = max(stage.samples_per_step for stage in plan.stages)
    if validation < largest:
        found.append(
            f"the validation set ({validation:,} images) is smaller than a batch ({largest:,}); "
            "evaluation pads its microbatches and stays exact"
        )
    warmup = plan.schedule.warmup / plan.samples
    if warmup > 0.5:
        found.append(f"the warm-up takes {warmup:.0%} of the training, more than half")
    low, high = ladder.POINTS[0].batch, ladder.POINTS[-1].batch
    if config.optimizer.name == "lars" and not low <= batch <= high:
        found.append(
            f"a batch of {batch:,} is outside of the published points for LARS, {low:,} to {high:,}"
        )
    if config.optimizer.name == "lars" and not lars_of(config.optimizer).trust_skip:
        found.append("BatchNorm and biases have trust ratios too (optimizer.trust_skip is empty)")
    return found
