"""The step of a network on a cluster, from few fitted physical parameters.

step = images · time of an image + passes · overhead ⊕ all-reduces under backward ⊕ update + waiting
for the slowest; input is in time. ``calibration`` fits the parameters to published runs of
ResNet-50 in 16-bit arithmetic; other ResNets and other arithmetic are scaled from it by a roofline.
``parallel.network`` has the costs of all-reduces, ``parallel.timeline`` the overlap.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from largebatch.models import Model
from largebatch.models.tracing import shapes_of
from largebatch.parallel.buckets import buckets_at, cubic_cuts
from largebatch.parallel.clusters import HARDWARE, Cluster, Hardware, Link
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, backward_seconds, replay
from largebatch.planning.arrivals import expected_slowest

IMAGE_BYTES = 386e6
"""Traffic of an image of 224 × 224 forward and backward (docs/performance.md)."""
UPDATE_BYTES = 0.72e9
"""Memory traffic of LARS for ResNet-50: weights, gradients and velocities in float32."""
PARAMETERS = 25_557_032
"""Parameters of ResNet-50."""
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
class Load:
    """What each device does in a step."""

    images: float
    size: int = SIZE
    """Side of an image."""
    passes: int = 1
    """Microbatches into which a device divides its images."""
    wire_bytes: int = 2
    """Bytes of a gradient on the wire."""
    algorithm: str = "auto"
    """Of the all-reduce."""

    @property
    def at_once(self) -> int:
        """Images of a pass."""
        return max(1, round(self.images / self.passes))


@dataclasses.dataclass(frozen=True)
class Step:
    """The parts of a step, in seconds; ``total_s`` is their sum."""

    compute_s: float
    """Images, and the overhead that does not depend on them."""
    exposed_s: float
    """All-reduces after backward, and the delay of backward by those under it."""
    optimizer_s: float
    straggler_s: float
    """Waiting for the slowest device."""

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.exposed_s + self.optimizer_s + self.straggler_s


@dataclasses.dataclass(frozen=True)
class Site:
    """A network, trained on a cluster by the software of a year."""

    parameters: Parameters
    """Fitted."""
    cluster: Cluster
    year: float
    """Of the software."""
    network: Model | None = None
    """None is ResNet-50 in the arithmetic of the fitted runs."""

    @property
    def model(self) -> Model:
        """The network."""
        return self.network or fitted_network(self.cluster.hardware)

    @property
    def linked(self) -> Cluster:
        """The cluster with links of the bandwidth that runs sustain."""
        of, share = self.cluster.hardware, self.parameters.network_efficiency
        inside, between = (
            Link(share * link.bandwidth, link.latency) for link in (of.inside, of.between)
        )
        hardware = dataclasses.replace(of, inside=inside, between=between)
        return dataclasses.replace(self.cluster, hardware=hardware)

    @property
    def overhead_s(self) -> float:
        """The time of a pass beyond that of its images; it is proportional to the layers."""
        hardware, layers = self.cluster.hardware, 1.0
        if self.network:
            fitted = fitted_network(hardware)
            layers = len(self.network.parameter_paths()) / len(fitted.parameter_paths())
        if hardware.torus:
            return layers * self.parameters.tpu_half_batch * self._image_s(SIZE)
        return layers * self.parameters.gpu_overhead_s * self._gain

    @property
    def start_s(self) -> float:
        """The time from the start on the clock until the pipeline is full."""
        return self.parameters.start_s * self._gain

    @property
    def half_batch(self) -> float:
        """The images per device at which half of its rate is reached, by the fitted network."""
        return self.overhead_s / self._image_s(SIZE)

    @property
    def _gain(self) -> float:
        """The factor by which software has changed overheads since `YEAR`."""
        return math.exp(-self.parameters.gain * (self.year - YEAR))

    def _image_s(self, size: int) -> float:
        """Return the fitted network's time of one image in a large batch, by its traffic.

        Hardware without a published run has the geometric mean of the families' shares.
        """
        hardware = self.cluster.hardware
        family = family_of(hardware)
        if family is None:
            shares = list(self.parameters.sustained.values())
            share = math.exp(sum(map(math.log, shares)) / len(shares))
            of = hardware
        else:
            share, of = self.parameters.sustained[family], HARDWARE[_FAMILIES[family][0]]
        faster = (hardware.bandwidth / of.bandwidth) ** self.parameters.bandwidth_exponent
        faster *= _BOARD.get(hardware.name, 1.0)
        faster *= math.exp(self.parameters.image_gain * (self.year - YEAR))
        return (size / SIZE) ** 2 * IMAGE_BYTES / (share * of.bandwidth * faster)

    def images_s(self, load: Load) -> float:
        """Return the time of a device's images forward and backward, without overheads."""
        relative = _relative_time(self.model, self.cluster.hardware, load.at_once, load.size)
        return load.images * self._image_s(load.size) * relative

    def evaluation_s(self, images: int, size: int = SIZE) -> float:
        """Return the time of one evaluation: forward passes of each device's share, and overhead.

        Args:
          images: of all devices.
          size: side of an image.
        """
        share = Load(math.ceil(images / self.cluster.devices), size)
        return _FORWARD * self.images_s(share) + _EVALUATION_STEPS * self.overhead_s

    def operations(self, load: Load) -> list[Compute | Start | Done]:
        """Return forward, backward and the all-reduces of a step, for ``replay``.

        GPUs reduce the record's four groups of layers as their gradients complete. TPUs reduce all
        of them after backward, as their compiler does. The last microbatch alone reduces.
        """
        hardware, cluster = self.cluster.hardware, self.linked
        sizes, shares = _groups(self.model, hardware, load.at_once, load.size)
        computing = self.images_s(load)
        before = (1 - 1 / load.passes) * computing
        last = computing - before
        program: list[Compute | Start | Done] = [Compute("forward", before + _FORWARD * last)]
        backward = (1 - _FORWARD) * last
        if hardware.torus:
            sizes, shares = (sum(sizes),), (1.0,)
        for i, (group, share) in enumerate(zip(sizes, shares, strict=True)):
            nbytes = group * load.wire_bytes
            program.append(Compute(f"backward {i}", share * backward))
            seconds = all_reduce_s(cluster, nbytes, load.algorithm)
            program.append(Start(f"group {i}", nbytes, seconds))
        return [*program, *(Done(f"group {i}") for i in range(len(sizes)))]

    def step(self, load: Load) -> Step:
        """Return the predicted step."""
        timeline = replay(self.operations(load))
        under = timeline.network_s - timeline.exposed_s
        exposed = timeline.exposed_s + self.parameters.hidden_cost * max(0.0, under)
        update = UPDATE_BYTES * elements_of(self.model) / PARAMETERS
        update /= self.cluster.hardware.bandwidth
        computing = self.images_s(load)
        busy = computing + load.passes * self.overhead_s
        slowest = expected_slowest(self.parameters.jitter, self.cluster.devices)
        return Step(busy, exposed, update, computing * (slowest - 1))


def family_of(hardware: Hardware) -> str | None:
    """Return the family whose sustained share this hardware has; None without a published run."""
    return next((name for name, boards in _FAMILIES.items() if hardware.name in boards), None)


@functools.cache
def fitted_network(hardware: Hardware) -> Model:
    """Return ResNet-50 in the arithmetic of the fitted runs on such hardware."""
    dtype = "bfloat16" if hardware.torus else "float16"
    return Model("resnet50", classes=1000, dtype=dtype, form="plain")


@functools.cache
def elements_of(network: Model) -> int:
    """Return the parameter elements of a network."""
    return sum(math.prod(shape) for _, shape in shapes_of(network))


@functools.cache
def _relative_time(network: Model, hardware: Hardware, images: int, size: int) -> float:
    """Return the time of an image in a network over that in the fitted one.

    By the roofline of each layer (``backward_seconds``): a layer takes the larger of its FLOPs at
    the peak of the number format and its bytes at the memory's bandwidth. 1 for ResNet-50 in the
    fitted format.
    """
    fitted = fitted_network(hardware)
    if network == fitted:
        return 1.0

    def seconds(of: Model) -> float:
        shape = (size, size, of.channels)
        return sum(backward_seconds(of, hardware, images=images, image_shape=shape).values())

    return seconds(network) / seconds(fitted)


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
