"""The step of a ResNet in 16-bit arithmetic on a cluster, from few physical parameters.

step = images · time of an image + passes · overhead ⊕ all-reduces under backward ⊕ update + waiting
for the slowest. ``device_time`` has the times of a device, ``parallel.network`` the costs of
all-reduces, ``parallel.timeline`` the overlap.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from largebatch.models import Model
from largebatch.models.tracing import shapes_of
from largebatch.parallel.buckets import buckets_at, cubic_cuts
from largebatch.parallel.clusters import Cluster, Hardware, Link
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, Timeline, backward_seconds, replay
from largebatch.planning.arrivals import expected_slowest
from largebatch.planning.device_time import (
    PARAMETERS,
    SIZE,
    Parameters,
    elements_of,
    fitted_network,
    image_s,
    overhead_s,
    relative_time,
)

UPDATE_BYTES = 0.72e9
"""Memory traffic of LARS for ResNet-50: weights, gradients and velocities in float32."""
_FORWARD = 1 / 3  # of an image's time; backward has twice the arithmetic
_EVALUATION_STEPS = 3  # overheads of an evaluation: drain, sum up, fill


@dataclasses.dataclass(frozen=True)
class Step:
    """The parts of a step, in seconds; ``total_s`` is their sum."""

    compute_s: float
    """Images, and the overhead that does not depend on them."""
    exposed_s: float
    """All-reduces after backward, and the delay of backward by those under it."""
    optimizer_s: float
    input_s: float
    """Waiting for images."""
    straggler_s: float
    """Waiting for the slowest device."""
    timeline: Timeline

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.exposed_s + self.optimizer_s + self.input_s + self.straggler_s


def step_of(
    parameters: Parameters,
    cluster: Cluster,
    *,
    images: float,
    year: float,
    size: int = SIZE,
    network: Model | None = None,
    passes: int = 1,
    wire_bytes: int = 2,
    algorithm: str = "auto",
    input_images_per_s: float = math.inf,
) -> Step:
    """Return the predicted step.

    GPUs reduce the record's four groups of layers as their gradients complete. TPUs reduce all of
    them after backward, as their compiler does.

    Args:
      parameters: fitted.
      cluster: the devices.
      images: images of each device.
      year: year of the software.
      size: side of an image.
      network: None is ResNet-50 in the arithmetic of the fitted runs.
      passes: microbatches into which a device divides its images.
      wire_bytes: bytes of a gradient on the wire.
      algorithm: of the all-reduce.
      input_images_per_s: rate of the input of each device.
    """
    network = network or fitted_network(cluster.hardware)
    at_once = max(1, round(images / passes))
    computing = images * image_s(parameters, cluster.hardware, year, size)
    computing *= relative_time(network, cluster.hardware, at_once, size)
    timeline = replay(
        operations(
            cluster_at(cluster, parameters.network_efficiency),
            computing=computing,
            images=at_once,
            size=size,
            network=network,
            wire_bytes=wire_bytes,
            algorithm=algorithm,
            earlier=1 - 1 / passes,
        )
    )
    under = timeline.network_s - timeline.exposed_s
    exposed = timeline.exposed_s + parameters.hidden_cost * max(0.0, under)
    update = UPDATE_BYTES * elements_of(network) / PARAMETERS / cluster.hardware.bandwidth
    overhead = passes * overhead_s(parameters, cluster.hardware, year, network)
    busy = computing + overhead
    step = busy + exposed + update
    waited = max(0.0, images / input_images_per_s - step)
    late = computing * (expected_slowest(parameters.jitter, cluster.devices) - 1)
    return Step(busy, exposed, update, waited, late, timeline)


def operations(
    cluster: Cluster,
    *,
    computing: float,
    images: float,
    size: int = SIZE,
    network: Model | None = None,
    wire_bytes: int = 2,
    algorithm: str = "auto",
    earlier: float = 0.0,
) -> list[Compute | Start | Done]:
    """Return forward, backward and the all-reduces, for ``replay``.

    Args:
      cluster: the devices.
      computing: seconds of all images.
      images: images that a device computes at a time.
      size: side of an image.
      network: None is ResNet-50 in the arithmetic of the fitted runs.
      wire_bytes: bytes of a gradient on the wire.
      algorithm: of the all-reduce.
      earlier: share of the computing in microbatches before the last, which alone reduces.
    """
    hardware = cluster.hardware
    network = network or fitted_network(hardware)
    sizes, shares = _groups(network, hardware, max(1, round(images)), size)
    before = earlier * computing
    last = computing - before
    program: list[Compute | Start | Done] = [Compute("forward", before + _FORWARD * last)]
    backward = (1 - _FORWARD) * last
    if hardware.torus:
        sizes, shares = (sum(sizes),), (1.0,)
    for i, (group, share) in enumerate(zip(sizes, shares, strict=True)):
        nbytes = group * wire_bytes
        program.append(Compute(f"backward {i}", share * backward))
        program.append(Start(f"group {i}", nbytes, all_reduce_s(cluster, nbytes, algorithm)))
    return [*program, *(Done(f"group {i}") for i in range(len(sizes)))]


def cluster_at(cluster: Cluster, efficiency: float) -> Cluster:
    """Return the cluster with links of this share of their bandwidth."""
    of = cluster.hardware
    inside, between = (
        Link(efficiency * link.bandwidth, link.latency) for link in (of.inside, of.between)
    )
    hardware = dataclasses.replace(of, inside=inside, between=between)
    return dataclasses.replace(cluster, hardware=hardware)


def evaluation_s(
    parameters: Parameters,
    cluster: Cluster,
    *,
    images: int,
    year: float,
    size: int = SIZE,
    network: Model | None = None,
) -> float:
    """Return the time of one evaluation: forward passes of each device's share, and overhead."""
    network = network or fitted_network(cluster.hardware)
    share = math.ceil(images / cluster.devices)
    each = _FORWARD * image_s(parameters, cluster.hardware, year, size)
    each *= relative_time(network, cluster.hardware, max(1, share), size)
    overhead = overhead_s(parameters, cluster.hardware, year, network)
    return share * each + _EVALUATION_STEPS * overhead


@functools.cache
def _groups(
    network: Model, hardware: Hardware, images: int, size: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return elements of the record's groups and their shares of backward, by the roofline."""
    image_shape = (size, size, network.channels)
    profile = backward_seconds(network, hardware, images=images, image_shape=image_shape)
    counted = [(path, math.prod(shape)) for path, shape in shapes_of(network)]
    groups = buckets_at(counted, cubic_cuts(len(counted)))
    seconds = [sum(profile[path] for path in group.paths) for group in groups]
    return (
        tuple(group.size for group in groups),
        tuple(each / sum(profile.values()) for each in seconds),
    )
