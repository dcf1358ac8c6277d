"""How long an all-reduce takes: the usual α-β models of collective algorithms.

S are the bytes that every rank contributes, B bytes/s a rank sends in each direction, a the latency
of a message, N ranks. Reduction arithmetic is left out: libraries stream it while they receive.
Sources: Thakur, Rabenseifner & Gropp 2005 (ring, recursive halving-doubling); Sanders, Speck &
Träff 2009 (two trees); NVIDIA, "Massively scale your deep learning training with NCCL 2.4"; Ying et
al. 2018, arXiv 1811.06992, section 3 (torus).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np

from largebatch.cluster.hardware import Hardware, Link, hardware_of
from largebatch.errors import ConfigError

Algorithm = Literal["auto", "ring", "tree", "hierarchical", "hierarchical_ring", "torus"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Devices of one kind, in full nodes, or in one node or slice that is not full.

    Raises:
      ConfigError: the devices fill no whole number of nodes, chips or slices.
    """

    hardware: Hardware
    devices: int
    devices_per_node: int = 0
    """0: what is usual for the hardware."""
    shape: tuple[int, ...] = ()
    """Chips along each axis of a slice's torus; empty: as even as can be."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.devices % self.node_devices:
            raise ConfigError(
                f"{self.devices} devices of {self.hardware.name} fill no whole number of "
                f"{'slices' if self.hardware.torus else 'nodes'} of {self.node_devices}; give a "
                "multiple of that"
            )
        if self.hardware.torus and math.prod(self.torus_shape) * self._per_chip != (
            self.node_devices
        ):
            raise ConfigError(
                f"a torus of {'×'.join(map(str, self.torus_shape))} has "
                f"{math.prod(self.torus_shape) * self._per_chip} devices of {self.hardware.name}, "
                f"not {self.node_devices}; give the shape of one slice"
            )

    @property
    def node_devices(self) -> int:
        """Devices that ``hardware.inside`` joins: of a node, or of a slice."""
        hardware = self.hardware
        if self.devices_per_node:
            usual = self.devices_per_node
        elif self.shape:
            usual = math.prod(self.shape) * hardware.devices_per_chip
        elif hardware.torus:
            usual = hardware.slice_chips * hardware.devices_per_chip
        else:
            usual = hardware.devices_per_node
        return min(self.devices, usual)

    @property
    def nodes(self) -> int:
        """Nodes, or slices."""
        return self.devices // self.node_devices

    @property
    def torus_shape(self) -> tuple[int, ...]:
        """Chips along each axis of a slice, the shortest axis first."""
        if self.shape:
            return self.shape
        chips, shape = max(1, self.node_devices // self._per_chip), []
        for axes in range(self.hardware.torus, 0, -1):
            side = (
                max(d for d in range(1, round(chips ** (1 / axes)) + 1) if chips % d == 0)
                if axes > 1
                else chips
            )
            shape.append(side)
            chips //= side
        return tuple(shape)

    @property
    def _per_chip(self) -> int:
        return min(self.hardware.devices_per_chip, self.devices)


def ring_s(ranks: int, nbytes: float, link: Link) -> float:
    """Reduce-scatter and all-gather round a ring: 2(N−1)a + 2(N−1)/N · S/B."""
    return 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)


def tree_s(ranks: int, nbytes: float, link: Link) -> float:
    """Logarithmic latency at a ring's traffic: 2⌈log₂N⌉a + 2(N−1)/N · S/B.

    Exact for recursive halving and doubling where N is a power of two; for two complementary
    binary trees (NCCL from 2.4 on), which share the payload, it holds once it is long.
    """
    hops = math.ceil(math.log2(ranks))
    return 2 * hops * link.latency + 2 * (ranks - 1) / ranks * nbytes / link.bandwidth


def torus_s(shape: Sequence[int], nbytes: float, link: Link, *, wrap: int = 1) -> float:
    """Axis after axis, each with what the axes before it have scattered.

    For X × Y: 2(X−1)a + 2(X−1)/X · S/B + 2(Y−1)a + 2(Y−1)/Y · S/(X·B), and so on.

    Args:
      shape: chips along each axis.
      nbytes: S.
      link: from a chip to one neighbour. An axis that closes to a ring is used both ways round, so
        B is twice its bandwidth; a line goes to and fro as one ring, so B is its bandwidth.
      wrap: an axis closes if its length is a multiple of this.
    """
    total, held = 0.0, nbytes
    for length in shape:
        ways = 2 if length > 2 and length % wrap == 0 else 1
        total += ring_s(length, held, Link(ways * link.bandwidth, link.latency))
        held /= length
    return total


def all_reduce_s(cluster: Cluster, nbytes: float, algorithm: Algorithm = "auto") -> float:
    """Seconds from the start of an all-reduce over all devices to its end on all of them.

    With g devices in each of M nodes (1: inside, 2: between), beside ``launch_s``:

    - ``ring``: one ring through all devices, in which every step waits for the slowest hop. One
      device of a node at a time speaks to another node and has all its adapters:
      2(N−1) · max(a₁ + S/(N·B₁), a₂ + S/(N·g·B₂)).
    - ``tree``: a chain inside each node, two trees between nodes, the payload streaming through, as
      NCCL's tuning model has it: 2((g−1)a₁ + ⌈log₂M⌉a₂) + 2(N−1)/N · S/min(B₁, g·B₂).
    - ``hierarchical``: reduce-scatter by a ring inside, ``tree_s`` of S/g between equals of all
      nodes, all-gather inside: 2(g−1)(a₁ + S/(g·B₁)) + 2⌈log₂M⌉a₂ + 2(M−1)/M · (S/g)/B₂.
    - ``hierarchical_ring``: the same with ``ring_s`` between nodes.
    - ``torus``: ``torus_s`` in a slice, and ``tree_s`` of what a device then holds between slices.
    - ``auto``: torus where there is one, else hierarchical.

    Args:
      cluster: the devices.
      nbytes: bytes that each device contributes.
      algorithm: one of these.
    """
    hardware = cluster.hardware
    inside, between = hardware.inside, hardware.between
    devices, group, nodes = cluster.devices, cluster.node_devices, cluster.nodes
    if devices == 1:
        return 0.0
    if algorithm == "auto":
        algorithm = "torus" if hardware.torus else "hierarchical"
    if algorithm == "ring":
        hops = [inside] if group > 1 else []
        if nodes > 1:
            hops.append(Link(group * between.bandwidth, between.latency))
        seconds = max(ring_s(devices, nbytes, hop) for hop in hops)
    elif algorithm == "tree":
        latency = (group - 1) * inside.latency + math.ceil(math.log2(nodes)) * between.latency
        ways = [inside.bandwidth] if group > 1 else []
        if nodes > 1:
            ways.append(group * between.bandwidth)
        seconds = 2 * latency + 2 * (devices - 1) / devices * nbytes / min(ways)
    elif algorithm in ("hierarchical", "hierarchical_ring"):
        across = tree_s if algorithm == "hierarchical" else ring_s
        seconds = ring_s(group, nbytes, inside) + across(nodes, nbytes / group, between)
    elif algorithm == "torus" and hardware.torus:
        shape = cluster.torus_shape
        seconds = torus_s(shape, nbytes, inside, wrap=hardware.wrap)
        seconds += tree_s(nodes, nbytes / math.prod(shape), between)
    else:
        raise ConfigError(
            f"algorithm {algorithm!r} is not one that {hardware.name} can be planned with; use "
            "auto, ring, tree, hierarchical or hierarchical_ring"
        )
    return hardware.launch_s + seconds


def cluster_of(devices: Sequence[jax.Device]) -> Cluster | None:
    """The cluster that these devices form; None where it cannot be told.

    A node's devices are those of one ``slice_index`` where JAX knows several (on GPUs these are
    hosts), else those of one process; where each process has one device, what is usual.
    """
    hardware = hardware_of(devices[0].device_kind)
    if hardware is None:
        return None
    count = len(devices)
    slices = len({getattr(device, "slice_index", None) or 0 for device in devices})
    processes = len({device.process_index for device in devices})
    shape, group = (), 0
    if hardware.torus:
        group = count // slices
        shape = _extents(devices)
    elif slices > 1:
        group = count // slices
    elif count > processes:
        group = count // processes
    try:
        return Cluster(hardware, count, devices_per_node=group, shape=shape)
    except ConfigError:
        return None  # nodes of unequal size


def _extents(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Chips along each axis of the first device's slice, from their coordinates."""
    first = getattr(devices[0], "slice_index", None) or 0
    mine = [d.coords for d in devices if (getattr(d, "slice_index", None) or 0) == first]
    return tuple(max(axis) - min(axis) + 1 for axis in zip(*mine, strict=True))


def fit_link(ranks: int, measured: Sequence[tuple[float, float]]) -> Link:
    """The link with which ``ring_s`` comes nearest to measured all-reduces, in relative terms.

    Least squares of (α + βS − t)/t over all points, α and β not below 0. The latency holds all that
    does not grow with the bytes, a call's own cost included.

    Args:
      ranks: how many took part.
      measured: (bytes, seconds).

    Returns:
      The link; its bandwidth is infinite if time does not grow with the bytes.
    """
    nbytes, seconds = np.asarray(measured, np.float64).T
    columns = np.stack([1 / seconds, nbytes / seconds], axis=1)
    ones = np.ones_like(seconds)
    (alpha, beta), *_ = np.linalg.lstsq(columns, ones)
    if alpha < 0 or beta < 0:
        # The optimum lies on the border: one of the two alone.
        alone = columns.T @ ones / (columns**2).sum(0)
        errors = ((columns * alone - ones[:, None]) ** 2).sum(0)
        alpha, beta = (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
    crossings = 2 * (ranks - 1)
    bandwidth = crossings / ranks / beta if beta > 0 else math.inf
    return Link(float(bandwidth), float(alpha / crossings))
