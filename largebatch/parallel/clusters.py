"""Clusters: the devices of a node, a rack, a slice, and the links between them."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import jax

from largebatch.errors import ConfigError
from largebatch.parallel.hardware import Hardware, Link, Machine, hardware_of


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Devices of one kind in full nodes, or in part of one node or slice.

    Raises:
      ConfigError: several nodes, chips or slices that are not full.
    """

    hardware: Hardware
    devices: int
    devices_per_node: int = 0
    """0: the usual number of the hardware."""
    shape: tuple[int, ...] = ()
    """Chips along each axis of a slice's torus; empty: as even as can be."""
    rack_nodes: int = 0
    """Nodes with full bandwidth between them; 0: all."""
    uplink_share: float = 1.0
    """Bandwidth that leaves a rack, of what its nodes have together."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.devices % self.node_devices:
            raise ConfigError(
                f"{self.devices} devices of {self.hardware.name}: expected full "
                f"{'slices' if self.hardware.torus else 'nodes'} of {self.node_devices}"
            )
        if self.hardware.torus and math.prod(self.torus_shape) * self._per_chip != (
            self.node_devices
        ):
            raise ConfigError(
                f"a torus of {'×'.join(map(str, self.torus_shape))} has "
                f"{math.prod(self.torus_shape) * self._per_chip} devices of {self.hardware.name}; "
                f"expected the shape of one slice of {self.node_devices}"
            )

    @property
    def node_devices(self) -> int:
        """Devices of a node or a slice, which ``hardware.inside`` connects."""
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
    def racks(self) -> int:
        """Racks of the nodes; the last one can be filled in part."""
        return math.ceil(self.nodes / self.rack_nodes) if self.rack_nodes else 1

    @property
    def between(self) -> Link:
        """A device's link to other nodes, if a scheduler spreads the nodes over the racks.

        Of a node's partners 1 − (r−1)/(M−1) are in other racks of r nodes. If this share is larger
        than the share of the bandwidth that leaves the rack, the uplinks decide.
        """
        line = self.hardware.between
        if self.racks == 1:
            return line
        crossing = 1 - (self.rack_nodes - 1) / (self.nodes - 1)
        slower = max(1.0, crossing / self.uplink_share)
        return Link(line.bandwidth / slower, line.latency)

    @property
    def _per_chip(self) -> int:
        return min(self.hardware.devices_per_chip, self.devices)


def cluster_in(machine: Machine, devices: int) -> Cluster:
    """Return devices of a named cluster.

    Raises:
      ConfigError: it has fewer, or they do not fill nodes or slices.
    """
    if machine.most_devices and devices > machine.most_devices:
        raise ConfigError(
            f"cluster {machine.name!r}: expected at most {machine.most_devices} devices, got "
            f"{devices}"
        )
    return Cluster(
        machine.hardware,
        devices,
        devices_per_node=machine.devices_per_node,
        rack_nodes=machine.rack_nodes,
        uplink_share=machine.uplink_share,
    )


def cluster_of(devices: Sequence[jax.Device]) -> Cluster | None:
    """Return the cluster of these devices; None for unknown hardware or nodes of unequal size.

    A node's devices are those of one ``slice_index`` if JAX knows several (on GPUs these are
    hosts), else those of one process; with one device per process, the usual number.
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


def reduces_in_turn(devices: Iterable[jax.Device]) -> bool:
    """Whether all-reduces of gradients must depend on each other (``Hardware.in_turn``).

    Between slices they are asynchronous without it, and would wait for the network one by one.
    """
    cluster = cluster_of(tuple(devices))
    if cluster is None or cluster.devices == 1:
        return False
    return cluster.hardware.in_turn and cluster.nodes == 1


def _extents(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """Return the chips along each axis of the first device's slice, from their coordinates."""
    first = getattr(devices[0], "slice_index", None) or 0
    mine = [d.coords for d in devices if (getattr(d, "slice_index", None) or 0) == first]
    return tuple(max(axis) - min(axis) + 1 for axis in zip(*mine, strict=True))
