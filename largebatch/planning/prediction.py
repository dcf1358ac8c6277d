"""How long a run takes on a named cluster, by the clock of MLPerf's rules.

The step is ``step_time``'s, with the parameters of ``fitted.toml``; how far published runs lay from
predictions that had not seen them gives the interval.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from largebatch.errors import ConfigError, did_you_mean
from largebatch.parallel.clusters import Cluster, cluster_in
from largebatch.parallel.collective_costs import broadcast_s
from largebatch.parallel.hardware import MACHINES, Hardware, machine
from largebatch.parallel.network import Algorithm
from largebatch.planning import step_time
from largebatch.planning.calibration import OffClock, table
from largebatch.planning.step_time import PARAMETERS, Network, Parameters, Step

Initialisation = Literal["same_seed", "broadcast"]
_PARAMETER_BYTES = 4  # weights are kept in float32
_FILE = "fitted.toml"


@dataclasses.dataclass(frozen=True)
class Segment:
    """One stage of a run."""

    steps: int
    images_per_device: int
    """Of one step."""
    devices: int
    """As JAX counts them: of TPU v3 the cores."""
    image_size: int = 224
    passes: int = 1
    """Microbatches into which a device divides its images."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A run: its stages, one after the other, and its evaluations."""

    segments: tuple[Segment, ...]
    evaluations: int
    evaluation_images: int
    evaluation_size: int = 224
    network: Network | None = None
    """None: ResNet-50 in the arithmetic of the fitted runs."""
    wire_bytes: int = 2
    """Of one gradient on the wire."""

    @property
    def parameters(self) -> int:
        """Parameter elements of the network."""
        return self.network.elements if self.network else PARAMETERS


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is expected; seconds, but where the name says otherwise."""

    step_s: float
    """Of the first segment; the five parts that follow add up to it."""
    compute_s: float
    """Images, and what a step costs whatever their number."""
    exposed_s: float
    """All-reduces beyond backward, and what those under it delay it by."""
    optimizer_s: float
    input_s: float
    """Waiting for images; 0 unless the rate of the input is given."""
    straggler_s: float
    """The slowest device, beyond the average one."""
    train_s: float
    """The start on the clock, until the pipeline is full, and all steps."""
    evaluation_s: float
    start_up_s: float
    """Before the clock by the rules since v0.6: processes, initialisation, compilation."""
    clock_s: float
    """From run_start to run_stop."""
    total_s: float
    """From the start of the processes to the end, whatever the clock holds of it."""
    images_per_s: float
    """Training images of all devices over the clock."""
    device_hours: float
    """The most devices of any segment, for all of ``total_s``."""
    low_s: float
    high_s: float
    """Of ``clock_s``: nine of ten published runs lay within, as predicted without them; without
    any on their hardware, where none was published for this one, or where the network or its
    arithmetic is not that of the published runs."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The parameters that predictions use, and how wrong they were on runs held out."""

    parameters: Parameters
    error: float
    """Ninth decile of |log(predicted / published rate)| of the rows, each held out."""
    unseen_error: float
    """The same where all rows of its family of hardware are held out together."""


def known_clusters() -> tuple[str, ...]:
    """Names that ``predict`` takes."""
    return tuple(MACHINES)


def predict(
    workload: Workload,
    cluster_name: str,
    *,
    parameters: Parameters | None = None,
    round: str = "",
    construction_on_clock: bool = False,
    initialisation: Initialisation = "same_seed",
    algorithm: Algorithm = "auto",
    input_images_per_s: float = math.inf,
) -> Prediction:
    """The time of a run.

    Args:
      workload: what is trained and evaluated.
      cluster_name: one of ``known_clusters()``.
      parameters: of the model; none: those of ``fitted.toml``.
      round: MLPerf round, such as v0.6, whose software is meant; empty: the latest that was fitted
        on this hardware, or of all where there is none.
      construction_on_clock: as the rules of v0.5 had it.
      initialisation: every process draws the weights from one seed, or one process sends them.
      algorithm: of the all-reduce.
      input_images_per_s: at which a device is fed, as scripts/benchmark.py input measures it.

    Raises:
      ConfigError: an unknown cluster or round, more devices than it has, a number of devices that
        fills no nodes, or counts that are no run.
    """
    _check(workload)
    machine_ = machine(cluster_name)
    fitted = load_fitted()
    values = parameters or fitted.parameters
    year = _year(round, cluster_name)
    clusters = [cluster_in(machine_, segment.devices) for segment in workload.segments]
    steps = [
        step_time.step_of(
            values,
            cluster,
            images=segment.images_per_device,
            year=year,
            size=segment.image_size,
            network=workload.network,
            passes=segment.passes,
            wire_bytes=workload.wire_bytes,
            algorithm=algorithm,
            input_images_per_s=input_images_per_s,
        )
        for segment, cluster in zip(workload.segments, clusters, strict=True)
    ]
    largest = max(clusters, key=lambda cluster: cluster.devices)
    stages = [s.steps * t.total_s for s, t in zip(workload.segments, steps, strict=True)]
    train = values.start_s * step_time.gain(values, year) + sum(stages)
    evaluation = workload.evaluations * step_time.evaluation_s(
        values,
        largest,
        images=workload.evaluation_images,
        year=year,
        size=workload.evaluation_size,
        network=workload.network,
    )
    before = start_up_s(largest, workload.parameters, initialisation)
    built = construction_s(largest, workload.parameters, initialisation)
    clock = train + evaluation + (built if construction_on_clock else 0.0)
    total = train + evaluation + before
    images = sum(s.steps * s.images_per_device * s.devices for s in workload.segments)
    first: Step = steps[0]
    known = is_calibrated(workload.network, machine_.hardware)
    error = fitted.error if known else fitted.unseen_error
    return Prediction(
        step_s=first.total_s,
        compute_s=first.compute_s,
        exposed_s=first.exposed_s,
        optimizer_s=first.optimizer_s,
        input_s=first.input_s,
        straggler_s=first.straggler_s,
        train_s=train,
        evaluation_s=evaluation,
        start_up_s=before,
        clock_s=clock,
        total_s=total,
        images_per_s=images / clock,
        device_hours=largest.devices * total / 3600,
        low_s=clock * math.exp(-error),
        high_s=clock * math.exp(error),
    )


def is_calibrated(network: Network | None, hardware: Hardware) -> bool:
    """Whether published runs of such a network on such hardware were fitted.

    The number of classes may differ: the head is a small part of the time.
    """
    if step_time.family_of(hardware) is None:
        return False
    if network is None:
        return True
    shapes = [shape for path, shape in network.shapes if not path.startswith("head")]
    fitted = [shape for path, shape in step_time.resnet50() if not path.startswith("head")]
    fast = hardware.flops[network.dtype] == max(hardware.flops.values())
    return shapes == fitted and network.dtype != "float32" and fast


def construction_s(cluster: Cluster, elements: int, initialisation: Initialisation) -> float:
    """Building the model: memory, choice of kernels, and equal weights everywhere.

    From one seed every process draws all weights and none waits. Sending costs the drawing on one
    process and then the broadcast, which only this makes grow with the devices.
    """
    of: OffClock = table().off_clock
    drawn = elements / of.parameters_per_s
    if initialisation == "same_seed" or cluster.devices == 1:
        return of.construction + drawn
    nbytes = _PARAMETER_BYTES * elements
    sent = broadcast_s(cluster.node_devices, nbytes, cluster.hardware.inside)
    sent += broadcast_s(cluster.nodes, nbytes, cluster.between)
    return of.construction + drawn + sent


def start_up_s(cluster: Cluster, elements: int, initialisation: Initialisation) -> float:
    """All that lies before the clock since v0.6, published for one seed; sending comes on top."""
    of = table().off_clock
    published = of.tpu if cluster.hardware.torus else of.gpu
    more = construction_s(cluster, elements, initialisation)
    return published + more - construction_s(cluster, elements, "same_seed")


@functools.cache
def load_fitted() -> Fitted:
    """What ``scripts/simulate.py`` fitted and wrote."""
    path = resources.files("largebatch.planning") / _FILE
    return fitted_from(tomllib.loads(path.read_text(encoding="utf-8")))


def fitted_from(read: Mapping[str, Any]) -> Fitted:
    """From the tables of ``fitted.toml``."""
    return Fitted(Parameters(**read["parameters"]), read["error"], read["unseen_error"])


def fitted_text(fitted: Fitted) -> str:
    """``fitted.toml``, with six digits."""
    lines = [
        "# Written by scripts/simulate.py from calibration.toml; do not edit.",
        "",
        "# Ninth decile of |log(predicted / published rate)| of the rows, each held out.",
        f"error = {fitted.error:.6g}",
        "# The same, each with all rows of its family of hardware.",
        f"unseen_error = {fitted.unseen_error:.6g}",
        "",
        "[parameters]",
    ]
    plain = dataclasses.asdict(fitted.parameters)
    shares = plain.pop("sustained")
    lines += [f"{name} = {value:.6g}" for name, value in plain.items()]
    lines += ["", "[parameters.sustained]"]
    lines += [f'"{family}" = {value:.6g}' for family, value in shares.items()]
    return "\n".join(lines) + "\n"


def _year(round_: str, cluster_name: str) -> float:
    read = table()
    if round_:
        if round_ not in read.rounds:
            raise ConfigError(f"unknown round {round_!r}; {did_you_mean(round_, read.rounds)}")
        return read.rounds[round_]
    family = step_time.family_of(machine(cluster_name).hardware)
    years = [read.rounds[row.round] for row in read.rows if family in (None, row.family)]
    return max(years)


def _check(workload: Workload) -> None:
    """Refuse what is no run.

    Raises:
      ConfigError: with the field.
    """
    if not workload.segments:
        raise ConfigError("a workload without segments trains nothing; give at least one")
    for i, segment in enumerate(workload.segments):
        for name, value in dataclasses.asdict(segment).items():
            if value < 1:
                raise ConfigError(f"segments[{i}].{name}={value}; give at least 1")
    for name in ("evaluations", "evaluation_images"):
        if getattr(workload, name) < 0:
            raise ConfigError(f"{name}={getattr(workload, name)}; give at least 0")
    for name in ("evaluation_size", "wire_bytes"):
        if getattr(workload, name) < 1:
            raise ConfigError(f"{name}={getattr(workload, name)}; give at least 1")
