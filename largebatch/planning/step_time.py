"""The step of ResNet-50 in 16-bit arithmetic on a cluster, from few physical parameters.

step = images · time of an image + passes · overhead ⊕ all-reduces under backward ⊕ update + waiting
for the slowest. ``calibration`` fits the parameters; ``parallel.network`` has the costs of
all-reduces, ``parallel.timeline`` the overlap. Other ResNets and other arithmetic are scaled from
ResNet-50 by a roofline; the fit has no published run of theirs.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from largebatch.models import Model
from largebatch.parallel.backward_times import Shapes, estimate, shapes_of
from largebatch.parallel.bucket_planner import buckets_at, cubic_cuts
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.hardware import HARDWARE, Hardware, Link
from largebatch.parallel.network import Algorithm, all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, Timeline, replay
from largebatch.planning.arrivals import expected_slowest

IMAGE_BYTES = 386e6
"""Traffic of an image of 224 × 224 forward and backward (docs/performance.md)."""
PARAMETERS = 25_557_032
UPDATE_BYTES = 0.72e9
"""Of LARS for these parameters: weights, gradients and velocities in float32."""
SIZE = 224
YEAR = 2020.5
"""When ``gpu_overhead_s`` and ``start_s`` hold."""
_FORWARD = 1 / 3  # of an image's time; backward has twice the arithmetic
_EVALUATION_STEPS = 3  # overheads of an evaluation: drain, sum up, fill
_FAMILIES = {
    "v100": ("v100", "v100-450w"),
    "a100": ("a100", "a100-40g", "a100-pcie"),
    "hopper": ("h100", "h200"),
    "tpu:v3": ("tpu:v3",),
    "tpu:v4": ("tpu:v4",),
    "ascend910": ("ascend910",),
}
FAMILIES = tuple(_FAMILIES)
# NVIDIA's MXNet benchmark, fp16: a V100 SXM3 in a DGX-2 1,492 images/s, an SXM2 1,376.
_BOARD = {"v100-450w": 1492 / 1376}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The fitted parameters; ``calibration.toml`` describes each."""

    sustained: Mapping[str, float]
    """By family of hardware."""
    bandwidth_exponent: float
    gpu_overhead_s: float
    gain: float
    image_gain: float
    tpu_half_batch: float
    network_efficiency: float
    hidden_cost: float
    start_s: float
    jitter: float


@dataclasses.dataclass(frozen=True)
class Network:
    """A ResNet and the number format of its convolutions."""

    shapes: Shapes
    """(path, shape) of its parameters, in the order of the forward pass."""
    dtype: str
    """float32, float16 or bfloat16."""

    @property
    def elements(self) -> int:
        """Parameter elements."""
        return sum(math.prod(shape) for _, shape in self.shapes)


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


def family_of(hardware: Hardware) -> str | None:
    """Return the family whose sustained share this hardware has; None without a published run."""
    return next((name for name, boards in _FAMILIES.items() if hardware.name in boards), None)


def image_s(parameters: Parameters, hardware: Hardware, year: float, size: int = SIZE) -> float:
    """Return the time of one image in a large batch: its traffic at the sustained bandwidth.

    Hardware without a published run has the geometric mean of the families' shares.
    """
    family = family_of(hardware)
    if family is None:
        shares = list(parameters.sustained.values())
        share = math.exp(sum(map(math.log, shares)) / len(shares))
        of = hardware
    else:
        share, of = parameters.sustained[family], HARDWARE[_FAMILIES[family][0]]
    faster = (hardware.bandwidth / of.bandwidth) ** parameters.bandwidth_exponent
    faster *= _BOARD.get(hardware.name, 1.0)
    faster *= math.exp(parameters.image_gain * (year - YEAR))
    return (size / SIZE) ** 2 * IMAGE_BYTES / (share * of.bandwidth * faster)


def fitted_network(hardware: Hardware) -> Network:
    """Return ResNet-50 in the arithmetic of the fitted runs on such hardware."""
    return Network(resnet50(), "bfloat16" if hardware.torus else "float16")


@functools.cache
def relative_time(network: Network, name: str, images: int, size: int = SIZE) -> float:
    """Return the time of an image in a network over that in the fitted one.

    By the roofline of each layer (``backward_times.estimate``): a layer takes the larger of its
    FLOPs at the peak of the number format and its bytes at the memory's bandwidth. 1 for ResNet-50
    in the fitted format.

    Args:
      network: the network.
      name: hardware, in ``HARDWARE``.
      images: images that a device computes at a time.
      size: side of an image.
    """
    hardware = HARDWARE[name]
    fitted = fitted_network(hardware)
    if network == fitted:
        return 1.0

    def seconds(of: Network) -> float:
        shape = (size, size, 3)
        return estimate(
            of.shapes, hardware, images=images, image_shape=shape, dtype=of.dtype
        ).total_s

    return seconds(network) / seconds(fitted)


def overhead_s(
    parameters: Parameters, hardware: Hardware, year: float, network: Network | None = None
) -> float:
    """Return the time of a pass beyond that of its images; it is proportional to the layers."""
    layers = len(network.shapes) / len(resnet50()) if network else 1.0
    if hardware.torus:
        return layers * parameters.tpu_half_batch * image_s(parameters, hardware, year)
    return layers * parameters.gpu_overhead_s * gain(parameters, year)


def gain(parameters: Parameters, year: float) -> float:
    """Return the factor by which software has changed overheads since mid-2020."""
    return math.exp(-parameters.gain * (year - YEAR))


def half_batch(parameters: Parameters, hardware: Hardware, year: float) -> float:
    """Return the images per device at which half of its rate is reached."""
    return overhead_s(parameters, hardware, year) / image_s(parameters, hardware, year)


def step_of(
    parameters: Parameters,
    cluster: Cluster,
    *,
    images: float,
    year: float,
    size: int = SIZE,
    network: Network | None = None,
    passes: int = 1,
    wire_bytes: int = 2,
    algorithm: Algorithm = "auto",
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
    computing *= relative_time(network, cluster.hardware.name, at_once, size)
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
    update = UPDATE_BYTES * network.elements / PARAMETERS / cluster.hardware.bandwidth
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
    network: Network | None = None,
    wire_bytes: int = 2,
    algorithm: Algorithm = "auto",
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
    sizes, shares = _groups(network, hardware.name, max(1, round(images)), size)
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
    network: Network | None = None,
) -> float:
    """Return the time of one evaluation: forward passes of each device's share, and overhead."""
    network = network or fitted_network(cluster.hardware)
    share = math.ceil(images / cluster.devices)
    each = _FORWARD * image_s(parameters, cluster.hardware, year, size)
    each *= relative_time(network, cluster.hardware.name, max(1, share), size)
    overhead = overhead_s(parameters, cluster.hardware, year, network)
    return share * each + _EVALUATION_STEPS * overhead


@functools.cache
def resnet50() -> Shapes:
    """Return (path, shape) of ResNet-50's parameters, in the order of the forward pass."""
    return shapes_of(Model("resnet50", classes=1000))


@functools.cache
def _groups(
    network: Network, name: str, images: int, size: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Return elements of the record's groups and their shares of backward, by the roofline."""
    profile = estimate(
        network.shapes,
        HARDWARE[name],
        images=images,
        image_shape=(size, size, 3),
        dtype=network.dtype,
    )
    counted = [(path, math.prod(shape)) for path, shape in network.shapes]
    groups = buckets_at(counted, cubic_cuts(len(counted)))
    seconds = [sum(profile.seconds[path] for path in group.paths) for group in groups]
    return (
        tuple(group.size for group in groups),
        tuple(each / profile.total_s for each in seconds),
    )
