"""Absent devices: their names, their networks, and their descriptions for XLA's compilers.

``cpu:N`` (fake devices of this machine), ``v100:N``, ``a100:N``, ``h100:N``, ``h200:N`` (N GPUs in
full nodes), ``tpu:KIND:SHAPE`` with the chips along each axis of a slice, such as
``tpu:v5p:8x16x16``, and ``tpu:v5e:16x16x8slices`` for several slices.

Sources of the GPUs' descriptions: tables of technical specifications by compute capability in
NVIDIA's CUDA C++ programming guide (threads, registers, shared memory of a multiprocessor), and the
architecture white papers of Volta, Ampere and Hopper (multiprocessors, FP32 units, L2 cache, boost
clock) for the SXM boards. Memory and its bandwidth are those of ``hardware.HARDWARE``.
"""

import dataclasses
import math
import os
import re
from collections.abc import Sequence

import jax

from largebatch.environment import versions
from largebatch.errors import ConfigError, did_you_mean
from largebatch.parallel.clusters import HARDWARE, Cluster, Hardware

_MAX_DEVICES = 2**16
_TPUS = tuple(name.removeprefix("tpu:") for name in HARDWARE if name.startswith("tpu:"))
_FORMS = "cpu:N, v100:N, a100:N, h100:N, h200:N, tpu:KIND:SHAPE (as tpu:v5p:8x16x16)"
_GPU_EXTRA = "pip install -e '.[compile-gpu]'"
_TPU_EXTRA = "pip install -e '.[compile-tpu]'"


_KIB, _MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class _Gpu:
    """A GPU for the compiler."""

    board: str
    capability: tuple[int, int]
    multiprocessors: int
    fp32_units: int
    """float32 units of a multiprocessor."""
    shared_kib: int
    """Shared memory of a multiprocessor, KiB; from Ampere on a block can have 1 KiB less."""
    l2_mib: int
    clock_ghz: float


_GPUS = {
    "v100": _Gpu("Tesla V100-SXM2-16GB", (7, 0), 80, 64, 96, 6, 1.53),
    "a100": _Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 164, 40, 1.41),
    "h100": _Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 228, 50, 1.98),
    "h200": _Gpu("NVIDIA H200", (9, 0), 132, 128, 228, 50, 1.98),
}
GPUS = tuple(_GPUS)


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices of one kind, present or not."""

    text: str
    """The name, such as ``v100:2048``."""
    hardware: Hardware
    devices: int
    """As JAX counts them: of TPU v3 the cores, of others the chips."""
    platform: str
    """The compiler's: cpu, cuda or tpu."""
    shape: tuple[int, ...] = ()
    """Chips of a TPU slice along each axis."""
    slices: int = 1

    @property
    def cluster(self) -> Cluster:
        """The cluster for the network model; the slice's shortest axis first."""
        return Cluster(self.hardware, self.devices, shape=tuple(sorted(self.shape)))

    @property
    def processes(self) -> int:
        """Hosts, each with one process; the fake devices of a machine share one."""
        if self.platform == "cpu":
            return 1
        return max(1, self.devices // self.hardware.devices_per_node)

    @property
    def option_platform(self) -> str:
        """The platform in the table of XLA options, as ``xla_options.platform_of`` names it."""
        return self.hardware.name if self.platform == "tpu" else self.platform

    def child_environment(self) -> dict[str, str]:
        """Return the environment variables of the process that compiles."""
        environment = {"JAX_PLATFORMS": "cpu"}  # leave present accelerators alone
        if self.platform == "cpu":
            environment["JAX_NUM_CPU_DEVICES"] = str(self.devices)
        if self.platform == "tpu":
            environment |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1"}
        return environment

    def jax_devices(self) -> Sequence[jax.Device]:
        """Return the devices to compile for; only programs for CPUs can run.

        Call it in a separate process with ``child_environment``: some failures end the process.
        """
        from jax.experimental import topologies

        if self.platform == "cpu":
            return jax.devices("cpu")
        if self.platform == "cuda":
            inside = min(self.devices, self.hardware.devices_per_node)
            described = topologies.get_topology_desc(
                platform="cuda",
                target_config=target_config(self.hardware.name),
                topology=f"1x{self.devices // inside}x{inside}",  # partitions × hosts × devices
            )
            return described.devices
        kind = self.hardware.name.removeprefix("tpu:")
        options = {"chip_config_name": "megacore"} if kind == "v4" else {}
        if self.slices > 1:
            options["num_slices"] = self.slices
        shape = "x".join(map(str, self.shape))
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{kind}:{shape}", **options
        )
        return described.devices


def open_topology(text: str) -> Topology:
    """Return the devices of a name.

    Raises:
      ConfigError: an unknown name, a number of devices that fills no nodes, a shape that no slice
        has, or a compiler that is not installed.
    """
    name, _, rest = text.partition(":")
    if name == "tpu":
        topology = _tpu(text, rest)
    elif name == "cpu" or name in GPUS:
        topology = _counted(text, name, rest)
    else:
        near = did_you_mean(name, ["cpu", "tpu", *GPUS])
        raise ConfigError(f"topology: unknown {text!r}; {near}; use one of {_FORMS}")
    _check_installed(topology)
    return topology


def _counted(text: str, name: str, count: str) -> Topology:
    hardware = HARDWARE[name]
    if not count.isdigit() or not 1 <= int(count) <= _MAX_DEVICES:
        raise ConfigError(
            f"topology {text!r}: expected {name}:N with 1 to {_MAX_DEVICES} devices, got {count!r}"
        )
    devices, node = int(count), hardware.devices_per_node
    if name != "cpu" and devices > node and devices % node:
        below = devices // node * node
        raise ConfigError(
            f"topology {text!r}: expected full nodes of {node} devices, got {devices}; use {below} "
            f"or {below + node}"
        )
    return Topology(text, hardware, devices, "cpu" if name == "cpu" else "cuda")


def _tpu(text: str, rest: str) -> Topology:
    kind, _, shape = rest.partition(":")
    if kind not in _TPUS:
        raise ConfigError(f"topology {text!r}: unknown TPU {kind!r}; {did_you_mean(kind, _TPUS)}")
    hardware = HARDWARE[f"tpu:{kind}"]
    match = re.fullmatch(r"(\d+(?:x\d+)*?)(?:x(\d+)slices?)?", shape)
    sides = tuple(map(int, match[1].split("x"))) if match else ()
    slices = int(match[2] or 1) if match else 1
    if len(sides) != hardware.torus or 0 in (*sides, slices):
        example = "x".join(["4"] * hardware.torus)
        raise ConfigError(
            f"topology {text!r}: a {kind} slice has {hardware.torus} axes of chips; use "
            f"tpu:{kind}:{example}, or tpu:{kind}:{example}x2slices"
        )
    chips = math.prod(sides)
    if chips > hardware.slice_chips:
        raise ConfigError(
            f"topology {text!r}: expected at most {hardware.slice_chips} chips in a slice, got "
            f"{chips}; use several slices: tpu:{kind}:SHAPExNslices"
        )
    devices = chips * hardware.devices_per_chip * slices
    return Topology(text, hardware, devices, "tpu", sides, slices)


def _check_installed(topology: Topology) -> None:
    """Check that the compiler is installed.

    Raises:
      ConfigError: it is not; the message names the extra.
    """
    if topology.platform == "tpu" and not _installed("libtpu"):
        raise ConfigError(
            f"topology {topology.text!r} needs the TPU compiler, which is not installed: "
            f"{_TPU_EXTRA}"
        )
    if topology.platform != "cuda":
        return
    # CUDA 13 no longer compiles for the V100.
    versions = ("12",) if topology.hardware.name == "v100" else ("12", "13")
    for version in versions:
        if _installed(f"jax-cuda{version}-pjrt") and _installed(f"jax-cuda{version}-plugin"):
            break
    else:
        raise ConfigError(
            f"topology {topology.text!r} needs the compiler of CUDA {' or '.join(versions)}, which "
            f"is not installed: {_GPU_EXTRA}"
        )
    toolkit = "nvidia-cuda-nvcc-cu12" if version == "12" else "nvidia-cuda-nvcc"
    if not _installed(toolkit) and "CUDA_DIR" not in os.environ:
        raise ConfigError(
            f"topology {topology.text!r} needs CUDA's assembler ({toolkit}), which is not "
            f"installed: {_GPU_EXTRA}"
        )


def _installed(distribution: str) -> bool:
    return bool(versions([distribution]))


def target_config(name: str) -> str:
    """Return the ``GpuTargetConfigProto`` of a GPU, such as ``v100``, as text."""
    target, hardware = _GPUS[name], HARDWARE[name]
    major, minor = target.capability
    reserved = _KIB if major >= 8 else 0
    # Kernels for Hopper use instructions that only sm_90a has.
    features = " feature_extension: ACCELERATED_FEATURES" if major == 9 else ""
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor}{features} }}
          core_count: {target.multiprocessors}
          fpus_per_core: {target.fp32_units}
          clock_rate_ghz: {target.clock_ghz}
          threads_per_warp: 32
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          thread_dim_limit_x: 1024
          thread_dim_limit_y: 1024
          thread_dim_limit_z: 64
          block_dim_limit_x: {2**31 - 1}
          block_dim_limit_y: {2**16 - 1}
          block_dim_limit_z: {2**16 - 1}
          registers_per_core_limit: {2**16}
          registers_per_block_limit: {2**16}
          shared_memory_per_core: {target.shared_kib * _KIB}
          shared_memory_per_block: {48 * _KIB}
          shared_memory_per_block_optin: {target.shared_kib * _KIB - reserved}
          l2_cache_size: {target.l2_mib * _MIB}
          device_memory_size: {int(hardware.memory)}
          memory_bandwidth: {int(hardware.bandwidth)}
          runtime_version: "12.9.0"
          compile_time_toolkit_version: "12.9.0"
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        device_description_str: "{target.board}"
    """
