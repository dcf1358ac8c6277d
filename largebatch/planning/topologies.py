"""Devices that are not here: what they are called, how they are joined, how to compile for them.

``cpu:N`` (fake devices of this machine), ``v100:N``, ``a100:N``, ``h100:N``, ``h200:N`` (N GPUs in
full nodes), ``tpu:KIND:SHAPE`` with the chips along each axis of a slice, such as
``tpu:v5p:8x16x16``, and ``tpu:v5e:16x16x8slices`` for several slices.
"""

import dataclasses
import math
import os
import re
from collections.abc import Sequence

import jax

from largebatch.environment import versions
from largebatch.errors import ConfigError, did_you_mean
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.hardware import HARDWARE, Hardware
from largebatch.planning import gpu_targets

_MAX_DEVICES = 2**16
_TPUS = tuple(name.removeprefix("tpu:") for name in HARDWARE if name.startswith("tpu:"))
_FORMS = "cpu:N, v100:N, a100:N, h100:N, h200:N, tpu:KIND:SHAPE (as tpu:v5p:8x16x16)"
_GPU_EXTRA = "pip install -e '.[compile-gpu]'"
_TPU_EXTRA = "pip install -e '.[compile-tpu]'"


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices of one kind, present or not."""

    text: str
    """As it was asked for."""
    hardware: Hardware
    devices: int
    """As JAX counts them: of TPU v3 the cores, of others the chips."""
    platform: str
    """The compiler's: cpu, cuda or tpu."""
    shape: tuple[int, ...] = ()
    """Of a TPU slice: chips along each axis."""
    slices: int = 1

    @property
    def cluster(self) -> Cluster:
        """The same for the network model; the slice's shortest axis first."""
        return Cluster(self.hardware, self.devices, shape=tuple(sorted(self.shape)))

    @property
    def processes(self) -> int:
        """Hosts, each with a process of its own; the fake devices of a machine share one."""
        if self.platform == "cpu":
            return 1
        return max(1, self.devices // self.hardware.devices_per_node)

    def child_environment(self) -> dict[str, str]:
        """Variables that must be set before JAX starts in the process that compiles."""
        environment = {"JAX_PLATFORMS": "cpu"}  # accelerators that are present stay untouched
        if self.platform == "cpu":
            environment["JAX_NUM_CPU_DEVICES"] = str(self.devices)
        if self.platform == "tpu":
            environment |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1"}
        return environment

    def jax_devices(self) -> Sequence[jax.Device]:
        """The devices, to compile for; only the CPU's can run what was compiled.

        Call in a process of its own with ``child_environment``: some failures end the process.
        """
        from jax.experimental import topologies

        if self.platform == "cpu":
            return jax.devices("cpu")
        if self.platform == "cuda":
            inside = min(self.devices, self.hardware.devices_per_node)
            described = topologies.get_topology_desc(
                platform="cuda",
                target_config=gpu_targets.target_config(self.hardware.name),
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
    """The devices that a text names, checked as far as that needs no compiler.

    Raises:
      ConfigError: an unknown name, a number of devices that fills no nodes, a shape that no slice
        has, or a compiler that is not installed.
    """
    name, _, rest = text.partition(":")
    if name == "tpu":
        topology = _tpu(text, rest)
    elif name == "cpu" or name in gpu_targets.NAMES:
        topology = _counted(text, name, rest)
    else:
        near = did_you_mean(name, ["cpu", "tpu", *gpu_targets.NAMES])
        raise ConfigError(f"unknown topology {text!r}; {near}; give one of {_FORMS}")
    _check_installed(topology)
    return topology


def _counted(text: str, name: str, count: str) -> Topology:
    hardware = HARDWARE[name]
    if not count.isdigit() or not 1 <= int(count) <= _MAX_DEVICES:
        raise ConfigError(
            f"topology {text!r}: {count!r} is no number of devices from 1 to {_MAX_DEVICES}; write "
            f"{name}:N"
        )
    devices, node = int(count), hardware.devices_per_node
    if name != "cpu" and devices > node and devices % node:
        below = devices // node * node
        raise ConfigError(
            f"topology {text!r}: {devices} devices fill no whole number of nodes of {node}; "
            f"nearest that do: {below} or {below + node}"
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
            f"topology {text!r}: the chips of a {kind} slice lie along {hardware.torus} axes; "
            f"write tpu:{kind}:{example}, or tpu:{kind}:{example}x2slices"
        )
    chips = math.prod(sides)
    if chips > hardware.slice_chips:
        raise ConfigError(
            f"topology {text!r}: a slice of {chips} chips exceeds the {hardware.slice_chips} of "
            f"the largest one; take several, as tpu:{kind}:SHAPExNslices"
        )
    devices = chips * hardware.devices_per_chip * slices
    return Topology(text, hardware, devices, "tpu", sides, slices)


def _check_installed(topology: Topology) -> None:
    """Refuse what there is no compiler for.

    Raises:
      ConfigError: with the extra that brings it.
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
