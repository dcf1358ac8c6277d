"""What a plan comes to on the hardware that it is for: FLOPs, time, device-hours, and doubts."""

import dataclasses

import jax
import jax.numpy as jnp

from largebatch.config import Config, Plan, StagePlan
from largebatch.config.geometry import check_microbatch, check_workers, microbatch_choices
from largebatch.errors import ConfigError
from largebatch.models import DEPTHS, Model
from largebatch.models.tracing import equations, product_flops
from largebatch.optim.flavours import lars_of
from largebatch.parallel.backward_times import shapes_of
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.hardware import Hardware, machine
from largebatch.planning import ladder, step_time
from largebatch.planning.calibration import table
from largebatch.planning.prediction import (
    Prediction,
    Segment,
    Workload,
    is_calibrated,
    load_fitted,
    predict,
)

LEAST_SIZE = 96
"""Side of the smallest images for which a time is predicted; the fitted runs had 128 and more."""


def why_no_forecast(plan: Plan) -> str:
    """Why no time can be predicted for a plan on any hardware; empty if one can."""
    if plan.config.model.name not in DEPTHS:
        return (
            f"no prediction for model.name={plan.config.model.name}: the cost model knows ResNets "
            "only; a measured step gives the time (scripts/doctor.py --measure_step)"
        )
    size = min(stage.facts.image_shape[0] for stage in plan.stages)
    if size < LEAST_SIZE:
        return (
            "data.image_size: the cost model is fitted to photographs of 128 to 256 pixels, and "
            f"these images have {size}; a measured step gives the time (scripts/doctor.py "
            "--measure_step)"
        )
    return ""


def network_of(plan: Plan, model: Model) -> step_time.Network:
    """The network of a plan, as the cost model sees it."""
    # The space-to-depth stem computes the same function of the same parameters.
    return step_time.Network(tuple(shapes_of(model)), plan.config.model.dtype)


def workload_of(plan: Plan, model: Model, devices: int) -> Workload:
    """The work of a plan on so many devices.

    Raises:
      ConfigError: no time can be predicted for it, a stage's workers cannot be shared evenly by the
        devices, or ``batch.microbatch`` does not divide them.
    """
    if why := why_no_forecast(plan):
        raise ConfigError(why)
    config = plan.config
    return Workload(
        tuple(
            Segment(
                s.steps,
                s.samples_per_step // devices,
                devices,
                s.facts.image_shape[0],
                passes_of(s, devices),
            )
            for s in plan.stages
        ),
        plan.evaluations,
        plan.facts.validation_examples,
        evaluation_size=config.data.evaluation_size or plan.stages[-1].facts.image_shape[0],
        network=network_of(plan, model),
        wire_bytes=config.comm.wire_bytes,
    )


def passes_of(stage: StagePlan, devices: int) -> int:
    """Microbatches of a stage on each of so many devices; one where they are chosen later.

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
    """The time of a plan on so many devices of a cluster of `known_clusters`.

    Args:
      plan: what is trained.
      model: its network.
      devices: as JAX counts them.
      cluster: of which machines.
      round: MLPerf round whose software is meant; empty: the latest that is known there.

    Raises:
      ConfigError: as of `workload_of`, or the cluster does not have such devices.
    """
    return predict(workload_of(plan, model, devices), cluster, round=round)


def step_on(plan: Plan, model: Model, cluster: Cluster) -> step_time.Step:
    """A step of a plan's first stage on devices that are here, with the latest software.

    Raises:
      ConfigError: as of `workload_of`.
    """
    work = workload_of(plan, model, cluster.devices)
    first = work.segments[0]
    return step_time.step_of(
        load_fitted().parameters,
        cluster,
        images=first.images_per_device,
        year=max(table().rounds.values()),
        size=first.image_size,
        network=work.network,
        passes=first.passes,
        wire_bytes=work.wire_bytes,
    )


def assumptions(plan: Plan, model: Model, devices: int, hardware: Hardware) -> list[str]:
    """What a reader must know of a predicted time: what is scaled and what is left out."""
    found, chosen = [], plan.config.model
    if not is_calibrated(network_of(plan, model), hardware):
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
    images = plan.first_stage.samples_per_step // devices
    if plan.config.batch.microbatch == "auto" and plan.first_stage.workers > devices:
        year, network = max(table().rounds.values()), network_of(plan, model)
        each = step_time.overhead_s(load_fitted().parameters, hardware, year, network)
        found.append(
            f"the time is for one microbatch of {images:,} images on each device, since "
            f"batch.microbatch=auto is chosen at the start; each further one adds about "
            f"{1e3 * each:.1f} ms to a step"
        )
    return found


@dataclasses.dataclass(frozen=True)
class InputNeed:
    """What the input has to deliver so that devices never wait."""

    images_per_s: float
    """Decoded images of each host."""
    hosts: int
    cores: dict[str, float]
    """Cores of each host, by the form in which images are stored."""

    @property
    def text(self) -> str:
        """For people."""
        cores = ", ".join(f"{round(count) or 1:,} for {form}" for form, count in self.cores.items())
        return (
            f"{self.images_per_s:,.0f} images/s on each of {self.hosts:,} host(s); CPU cores of "
            f"each: {cores}"
        )


IMAGES_PER_CPU_S = {
    "full-size JPEGs": 862.0,
    "JPEGs of 256 pixels": 2054.0,
    "a decoded store": 21128.0,
}
"""Training images that one core prepares in a second: records/2026-11-21_input_full_cpu.json,
…_side256_cpu.json and …_decoded_cpu.json, medians on one core of an AMD EPYC."""


def input_need(images_per_s: float, hosts: int) -> InputNeed:
    """The need of a training that consumes so many images a second on so many hosts."""
    each = images_per_s / hosts
    cores = {form: each / rate for form, rate in IMAGES_PER_CPU_S.items()}
    return InputNeed(each, hosts, cores)


def hosts_of(devices: int, cluster: str) -> int:
    """Hosts that so many devices of a named cluster have, each with its own input."""
    of = machine(cluster)
    return -(-devices // (of.devices_per_node or of.hardware.devices_per_node))


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
    samples = [(s.facts.image_shape, s.steps * s.samples_per_step) for s in plan.stages]
    return Flops(
        of_image=sizes[plan.facts.image_shape],
        of_training=sum(sizes[shape] * count for shape, count in samples),
    )


def _forward_flops(model: Model, shape: tuple[int, int, int]) -> float:
    model = dataclasses.replace(model, pointwise="convolution")
    params, stats = model.shapes()
    images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    jaxpr = jax.make_jaxpr(model.apply)(params, stats, images)
    return sum(product_flops(equation) for equation in equations(jaxpr.jaxpr))


def doubts(config: Config, plan: Plan) -> list[str]:
    """What a user should know before this is run, each with its numbers."""
    found = []
    batch, validation = plan.first_stage.samples_per_step, plan.facts.validation_examples
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
