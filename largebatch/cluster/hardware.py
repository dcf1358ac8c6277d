"""What devices and the networks between them can do, as their makers state it.

Rates are those of the line, without protocol: what a machine really gives is lower and is fitted by
``scripts/benchmark.py allreduce``. Sources:

- V100, A100, H100, H200: NVIDIA's data sheets of the SXM boards (dense, no sparsity). ``float32``
  is what XLA uses for it by default: TF32 on tensor cores from the A100 on, plain FP32 on the V100,
  which has no bfloat16 units either.
- ABCI, the record's cluster: 4 V100 a node, NVLink2 of 6 × 25 GB/s a device and direction, and two
  EDR adapters (100 Gb/s each) a node: 6.25 GB/s a device. Its racks share a third of the bisection
  with each other, which is left out. Nodes of the later ones: an adapter a device, HDR 200 Gb/s
  for the A100 and NDR 400 Gb/s for the H100 and H200, as in NVIDIA's DGX of that generation.
- Latencies of GPUs: NCCL's own tuning model (src/graph/tuning.cc, LL128 protocol): 1.9 µs a hop of
  a ring over NVLink, 8.5 µs a hop of a tree over the network, 14 µs for a call.
- TPU: Google's pages on Cloud TPU and "How to scale your model" (jax-ml.github.io/scaling-book,
  chapter on TPUs): ICI of a link and direction, network of the data centre for each chip, where an
  axis of a slice closes to a ring. 1 µs a hop is that book's figure; a call's 5 µs is assumed.
- ``sustained``: from published images/s of ResNet-50 training, at 386 MB of traffic an image
  (docs/performance.md) over the memory's bandwidth; 0.5 is assumed where nothing is published.
"""

import dataclasses
import types
from collections.abc import Mapping

_GB = 1e9
_GIB = 2**30
_US = 1e-6


@dataclasses.dataclass(frozen=True)
class Link:
    """One device's way to its neighbours."""

    bandwidth: float
    """Bytes/s for each device and direction."""
    latency: float
    """Seconds that a message takes besides its bytes."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of device, as JAX counts devices, in its usual machine."""

    name: str
    kinds: tuple[str, ...]
    """What ``device_kind`` contains, in lower case; the longest that fits decides."""
    flops: Mapping[str, float]
    """Peak FLOP/s by number format."""
    bandwidth: float
    """Bytes/s of device memory."""
    memory: float
    """Bytes of device memory."""
    devices_per_node: int
    inside: Link
    """Between devices of a node; for a torus, one ICI link."""
    between: Link
    """Between nodes, or between slices of a torus."""
    launch_s: float
    """Seconds that every collective costs, however small and near."""
    sustained: float
    """Share of the roofline (peak FLOP/s and memory bandwidth) that ResNet-50 training reaches."""
    torus: int = 0
    """Dimensions of the network inside a slice; 0: nodes and switches."""
    slice_chips: int = 0
    """Chips of the largest torus."""
    wrap: int = 1
    """An axis closes to a ring if its length is a multiple of this."""
    devices_per_chip: int = 1


def _flops(float32: float, float16: float, bfloat16: float) -> Mapping[str, float]:
    return types.MappingProxyType(
        {"float32": float32 * 1e12, "float16": float16 * 1e12, "bfloat16": bfloat16 * 1e12}
    )


def _gpu(name: str, **facts: object) -> Hardware:
    return Hardware(name=name, kinds=(name,), launch_s=14 * _US, **facts)


def _tpu(name: str, kinds: tuple[str, ...], peak: float, **facts: object) -> Hardware:
    # The matrix unit multiplies bfloat16, to which XLA rounds the other formats by default.
    return Hardware(
        name=name, kinds=kinds, flops=_flops(peak, peak, peak), launch_s=5 * _US, **facts
    )


def _nvlink(gigabytes: float) -> Link:
    return Link(gigabytes * _GB, 1.9 * _US)


def _infiniband(gigabytes: float) -> Link:
    return Link(gigabytes * _GB, 8.5 * _US)


def _ici(gigabytes: float) -> Link:
    return Link(gigabytes * _GB, 1 * _US)


def _data_centre(gigabytes: float) -> Link:
    return Link(gigabytes * _GB, 20 * _US)  # latency assumed: Ethernet through several switches


HARDWARE: Mapping[str, Hardware] = types.MappingProxyType(
    {
        "v100": _gpu(
            "v100",
            flops=_flops(15.7, 125, 15.7),
            bandwidth=900 * _GB,
            memory=16 * _GIB,
            devices_per_node=4,
            inside=_nvlink(150),
            between=_infiniband(6.25),
            sustained=0.59,  # 1,376 images/s, fp16 (NVIDIA, MXNet 20.12)
        ),
        "a100": _gpu(
            "a100",
            flops=_flops(156, 312, 312),
            bandwidth=2039 * _GB,
            memory=80 * _GIB,
            devices_per_node=8,
            inside=_nvlink(300),
            between=_infiniband(25),
            sustained=0.47,  # 2,470 images/s (NVIDIA, PyTorch with AMP)
        ),
        "h100": _gpu(
            "h100",
            flops=_flops(495, 989, 989),
            bandwidth=3350 * _GB,
            memory=80 * _GIB,
            devices_per_node=8,
            inside=_nvlink(450),
            between=_infiniband(50),
            sustained=0.82,  # 7,140 images/s (MLPerf v4.0; its fused kernels move less)
        ),
        "h200": _gpu(
            "h200",
            flops=_flops(495, 989, 989),
            bandwidth=4800 * _GB,
            memory=141 * _GB,
            devices_per_node=8,
            inside=_nvlink(450),
            between=_infiniband(50),
            sustained=0.64,  # 7,940 images/s (MLPerf v4.0)
        ),
        # JAX's device is one of a chip's two cores. The sum of the two before the ICI is left out.
        "tpu:v3": _tpu(
            "tpu:v3",
            ("tpu v3",),
            123 / 2,
            bandwidth=450 * _GB,
            memory=16 * _GIB,
            devices_per_node=8,
            inside=_ici(100),
            between=_data_centre(6.25),
            sustained=0.50,  # 1,171 images/s a chip (MLPerf v0.6)
            torus=2,
            slice_chips=1024,
            wrap=32,
            devices_per_chip=2,
        ),
        "tpu:v4": _tpu(
            "tpu:v4",
            ("tpu v4",),
            275,
            bandwidth=1228 * _GB,
            memory=32 * _GIB,
            devices_per_node=4,
            inside=_ici(45),
            between=_data_centre(6.25),
            sustained=0.64,  # 2,050 images/s a chip (MLPerf v1.0)
            torus=3,
            slice_chips=4096,
            wrap=4,
        ),
        "tpu:v5e": _tpu(
            "tpu:v5e",
            ("tpu v5e", "tpu v5 lite", "tpu v5litepod"),
            197,
            bandwidth=819 * _GB,
            memory=16 * _GB,
            devices_per_node=4,
            inside=_ici(45),
            between=_data_centre(3.125),
            sustained=0.5,
            torus=2,
            slice_chips=256,
            wrap=16,
        ),
        "tpu:v5p": _tpu(
            "tpu:v5p",
            ("tpu v5", "tpu v5p"),
            459,
            bandwidth=2765 * _GB,
            memory=95 * _GB,
            devices_per_node=4,
            inside=_ici(90),
            between=_data_centre(6.25),
            sustained=0.5,
            torus=3,
            slice_chips=8960,
            wrap=4,
        ),
        "tpu:v6e": _tpu(
            "tpu:v6e",
            ("tpu v6e", "tpu v6 lite"),
            918,
            bandwidth=1640 * _GB,
            memory=32 * _GB,
            devices_per_node=4,
            inside=_ici(90),
            between=_data_centre(12.5),
            sustained=0.5,
            torus=2,
            slice_chips=256,
            wrap=16,
        ),
        # No data sheet can say what a core of somebody's machine does: orders of magnitude.
        "cpu": Hardware(
            name="cpu",
            kinds=("cpu",),
            flops=_flops(0.1, 0.02, 0.02),
            bandwidth=10 * _GB,
            memory=8 * _GIB,
            devices_per_node=8,
            inside=Link(2 * _GB, 20 * _US),
            between=Link(1.25 * _GB, 50 * _US),  # 10 Gb/s Ethernet
            launch_s=100 * _US,
            sustained=0.5,
        ),
    }
)


def hardware_of(device_kind: str) -> Hardware | None:
    """The entry for a device as JAX names it ('NVIDIA H200', 'TPU v5 lite'); None if unknown."""
    text = device_kind.lower()
    fitting = [
        (len(kind), name)
        for name, hardware in HARDWARE.items()
        for kind in hardware.kinds
        if kind in text
    ]
    return HARDWARE[max(fitting)[1]] if fitting else None
