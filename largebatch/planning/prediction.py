"""The time of a run on a named cluster, by the clock of MLPerf's rules.

The step is that of ``step_time`` with the parameters of ``fitted.toml``. The errors of held-out
published runs give the interval.
"""

import dataclasses
import functools
import math
import tomllib
from importlib import resources
from typing import Literal

from largebatch.errors import ConfigError, did_you_mean
from largebatch.models import Model
from largebatch.models.tracing import shapes_of
from largebatch.parallel.clusters import MACHINES, Cluster, Hardware, cluster_in, machine
from largebatch.parallel.network import double_tree_s
from largebatch.planning.calibration import table
from largebatch.planning.step_time import (
    PARAMETERS,
    Load,
    Parameters,
    Site,
    elements_of,
    family_of,
    fitted_network,
)

Initialization = Literal["same_seed", "broadcast"]
_PARAMETER_BYTES = 4  # weights are kept in float32


@dataclasses.dataclass(frozen=True)
class Segment:
    """One stage of a run."""

    steps: int
    images_per_device: int
    """Images that a device computes in a step."""
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
    network: Model | None = None
    """None: ResNet-50 in the arithmetic of the fitted runs."""
    wire_bytes: int = 2
    """Bytes of one gradient on the wire."""

    @property
    def parameters(self) -> int:
        """Parameter elements of the network."""
        return elements_of(self.network) if self.network else PARAMETERS


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted run; seconds unless the name says otherwise."""

    step_s: float
    """Seconds of a step of the first segment: the sum of the next four (``step_time.Step``)."""
    compute_s: float
    exposed_s: float
    optimizer_s: float
    straggler_s: float
    train_s: float
    """All steps, and the start on the clock until the pipeline is full."""
    evaluation_s: float
    start_up_s: float
    """Before the clock by the rules since v0.6: processes, initialization, compilation."""
    clock_s: float
    """From run_start to run_stop."""
    total_s: float
    """From the start of the processes to the end."""
    images_per_s: float
    """Training images of all devices over the clock."""
    device_hours: float
    """The most devices of any segment, for all of ``total_s``."""
    low_s: float
    high_s: float
    """Interval of ``clock_s``: nine of ten published runs lay within, predicted without them; or
    without any on their hardware, if there is none for this hardware, network or arithmetic."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The parameters of predictions, and their errors on held-out runs."""

    parameters: Parameters
    error: float
    """Ninth decile of |log(predicted / published rate)| of the rows, each held out."""
    unseen_error: float
    """The same with all rows of a family of hardware held out together."""


def known_clusters() -> tuple[str, ...]:
    """Return the names that ``predict`` takes."""
    return tuple(MACHINES)


def predict(
    workload: Workload,
    cluster_name: str,
    *,
    parameters: Parameters | None = None,
    round: str = "",
    construction_on_clock: bool = False,
    initialization: Initialization = "same_seed",
    algorithm: str = "auto",
) -> Prediction:
    """Predict the time of a run.

    Args:
      workload: the run.
      cluster_name: one of ``known_clusters()``.
      parameters: None takes those of ``fitted.toml``.
      round: MLPerf round of the software, such as v0.6; empty: the latest that was fitted on this
        hardware, or of all without one.
      construction_on_clock: as by the rules of v0.5.
      initialization: every process draws the weights from one seed, or one process sends them.
      algorithm: of the all-reduce.

    Raises:
      ConfigError: an unknown cluster or round, or devices that the cluster does not have or that
        fill no nodes.
    """
    machine_ = machine(cluster_name)
    fitted = load_fitted()
    values = parameters or fitted.parameters
    year = _year(round, cluster_name)
    sites = [
        Site(values, cluster_in(machine_, segment.devices), year, workload.network)
        for segment in workload.segments
    ]
    steps = [
        site.step(
            Load(
                segment.images_per_device,
                segment.image_size,
                segment.passes,
                workload.wire_bytes,
                algorithm,
            )
        )
        for segment, site in zip(workload.segments, sites, strict=True)
    ]
    site = max(sites, key=lambda site: site.cluster.devices)
    largest = site.cluster
    stages = [s.steps * t.total_s for s, t in zip(workload.segments, steps, strict=True)]
    train = site.start_s + sum(stages)
    evaluation = workload.evaluations * site.evaluation_s(
        workload.evaluation_images, workload.evaluation_size
    )
    before = start_up_s(largest, workload.parameters, initialization)
    built = construction_s(largest, workload.parameters, initialization)
    clock = train + evaluation + (built if construction_on_clock else 0.0)
    total = train + evaluation + before
    images = sum(s.steps * s.images_per_device * s.devices for s in workload.segments)
    known = is_calibrated(workload.network, machine_.hardware)
    error = fitted.error if known else fitted.unseen_error
    parts = ("compute_s", "exposed_s", "optimizer_s", "straggler_s")
    return Prediction(
        step_s=steps[0].total_s,
        **{name: getattr(steps[0], name) for name in parts},
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


def is_calibrated(network: Model | None, hardware: Hardware) -> bool:
    """Whether the fit has published runs of such a network on such hardware.

    The number of classes may differ: the head is a small part of the time.
    """
    if family_of(hardware) is None:
        return False
    if network is None:
        return True
    found, fitted = (
        [shape for path, shape in shapes_of(each) if not path.startswith("head")]
        for each in (network, fitted_network(hardware))
    )
    fast = hardware.flops[network.dtype] == max(hardware.flops.values())
    return found == fitted and network.dtype != "float32" and fast


def construction_s(cluster: Cluster, elements: int, initialization: Initialization) -> float:
    """Predict the time to build the model: memory, choice of kernels, equal weights everywhere.

    From one seed every process draws all weights and none waits. Sending them adds a broadcast,
    which grows with the devices.
    """
    of = table().off_clock
    drawn = elements / of.parameters_per_s
    if initialization == "same_seed" or cluster.devices == 1:
        return of.construction + drawn
    nbytes = _PARAMETER_BYTES * elements
    # A broadcast through two trees is half of an all-reduce through them.
    sent = double_tree_s(cluster.node_devices, nbytes, cluster.hardware.inside) / 2
    sent += double_tree_s(cluster.nodes, nbytes, cluster.between) / 2
    return of.construction + drawn + sent


def start_up_s(cluster: Cluster, elements: int, initialization: Initialization) -> float:
    """Return the time before the clock since v0.6: as published for one seed, plus sending."""
    of = table().off_clock
    published = of.tpu if cluster.hardware.torus else of.gpu
    more = construction_s(cluster, elements, initialization)
    return published + more - construction_s(cluster, elements, "same_seed")


@functools.cache
def load_fitted() -> Fitted:
    """Read ``fitted.toml``, which ``scripts/simulate.py`` writes."""
    path = resources.files("largebatch.planning") / "fitted.toml"
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    return Fitted(Parameters(**read["parameters"]), read["error"], read["unseen_error"])


def fitted_text(fitted: Fitted) -> str:
    """Return the text of ``fitted.toml``, with six digits."""
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
            raise ConfigError(f"round: unknown {round_!r}; {did_you_mean(round_, read.rounds)}")
        return read.rounds[round_]
    family = family_of(machine(cluster_name).hardware)
    years = [read.rounds[row.round] for row in read.rows if family in (None, row.family)]
    return max(years)
