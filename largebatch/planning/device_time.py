"""The time of images on one device in 16-bit arithmetic, from few fitted parameters.

``calibration`` fits the parameters to published runs of ResNet-50. Other ResNets and other
arithmetic are scaled from it by a roofline; the fit has no published run of theirs.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

from largebatch.models import Model
from largebatch.models.tracing import shapes_of
from largebatch.parallel.clusters import HARDWARE, Hardware
from largebatch.parallel.timeline import backward_seconds

IMAGE_BYTES = 386e6
"""Traffic of an image of 224 × 224 forward and backward (docs/performance.md)."""
PARAMETERS = 25_557_032
"""Parameters of ResNet-50."""
SIZE = 224
YEAR = 2020.5
"""When ``gpu_overhead_s`` and ``start_s`` hold."""
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


@functools.cache
def fitted_network(hardware: Hardware) -> Model:
    """Return ResNet-50 in the arithmetic of the fitted runs on such hardware."""
    dtype = "bfloat16" if hardware.torus else "float16"
    return Model("resnet50", classes=1000, dtype=dtype, pointwise="convolution")


@functools.cache
def elements_of(network: Model) -> int:
    """Return the parameter elements of a network."""
    return sum(math.prod(shape) for _, shape in shapes_of(network))


@functools.cache
def relative_time(network: Model, hardware: Hardware, images: int, size: int = SIZE) -> float:
    """Return the time of an image in a network over that in the fitted one.

    By the roofline of each layer (``backward_seconds``): a layer takes the larger of its FLOPs at
    the peak of the number format and its bytes at the memory's bandwidth. 1 for ResNet-50
    in the fitted format.

    Args:
      network: the network; its dtype is that of its convolutions.
      hardware: the device.
      images: images that a device computes at a time.
      size: side of an image.
    """
    fitted = fitted_network(hardware)
    if network == fitted:
        return 1.0

    def seconds(of: Model) -> float:
        shape = (size, size, of.channels)
        return sum(backward_seconds(of, hardware, images=images, image_shape=shape).values())

    return seconds(network) / seconds(fitted)


def overhead_s(
    parameters: Parameters, hardware: Hardware, year: float, network: Model | None = None
) -> float:
    """Return the time of a pass beyond that of its images; it is proportional to the layers."""
    layers = 1.0
    if network:
        layers = len(network.parameter_paths()) / len(fitted_network(hardware).parameter_paths())
    if hardware.torus:
        return layers * parameters.tpu_half_batch * image_s(parameters, hardware, year)
    return layers * parameters.gpu_overhead_s * gain(parameters, year)


def gain(parameters: Parameters, year: float) -> float:
    """Return the factor by which software has changed overheads since mid-2020."""
    return math.exp(-parameters.gain * (year - YEAR))


def half_batch(parameters: Parameters, hardware: Hardware, year: float) -> float:
    """Return the images per device at which half of its rate is reached."""
    return overhead_s(parameters, hardware, year) / image_s(parameters, hardware, year)
