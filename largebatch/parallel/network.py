"""The time of an all-reduce over all devices of a cluster.

The formulas for one kind of link, with their sources, are in ``collective_costs``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import Cluster
from largebatch.parallel.collective_costs import (
    double_tree_s,
    halving_doubling_s,
    levels_s,
    ring_s,
    root_s,
    torus_s,
    tree_s,
)
from largebatch.parallel.hardware import Link

Algorithm = Literal[
    "auto",
    "ring",
    "pipelined_ring",
    "tree",
    "double_tree",
    "halving_doubling",
    "hierarchical",
    "hierarchical_ring",
    "multilevel",
    "torus",
    "parameter_server",
]


def all_reduce_s(cluster: Cluster, nbytes: float, algorithm: Algorithm = "auto") -> float:
    """Return the seconds from the start of an all-reduce to its end on all devices.

    With g devices in each of M nodes (1: inside, 2: between), beside ``launch_s``:

    - ``ring``: one ring through all devices, in which every step waits for the slowest hop. One
      device of a node at a time sends to another node and has all adapters of its node:
      2(N−1) · max(a₁ + S/(N·B₁), a₂ + S/(N·g·B₂)).
    - ``pipelined_ring``: the same ring with several pieces under way on a link at once, as NCCL's
      buffers allow: its tuning model adds up the latencies of the hops, and the narrowest way
      alone sets the rate: 2((N−M)a₁ + (M−1)a₂) + 2(N−1)/N · S/min(B₁, g·B₂).
    - ``tree``: a chain inside each node, two trees between nodes, the payload streaming through, as
      NCCL's tuning model has it: 2((g−1)a₁ + ⌈log₂M⌉a₂) + 2(N−1)/N · S/min(B₁, g·B₂).
    - ``double_tree``: the same with the trees' blocks counted, ``double_tree_s`` between nodes.
    - ``halving_doubling``: over all devices, the most distant first, so that S crosses the network:
      ``halving_doubling_s`` of S between nodes and of S/M inside.
    - ``hierarchical``: reduce-scatter by a ring inside, ``tree_s`` of S/g between equals of all
      nodes, all-gather inside: 2(g−1)(a₁ + S/(g·B₁)) + 2⌈log₂M⌉a₂ + 2(M−1)/M · (S/g)/B₂.
    - ``hierarchical_ring``: the same with ``ring_s`` between nodes.
    - ``multilevel``: rings inside the nodes, between nodes of a rack, between racks, each with the
      part that the level below has scattered; all devices of a rack share its uplinks.
    - ``torus``: ``torus_s`` in a slice, and ``tree_s`` of a device's part between slices.
    - ``parameter_server``: ``root_s``; the root's node has all its adapters for it.
    - ``auto``: torus where there is one, else hierarchical.

    Args:
      cluster: the devices.
      nbytes: bytes that each device contributes.
      algorithm: one of these.

    Raises:
      ConfigError: an unknown algorithm, or a torus on hardware without one.
    """
    if cluster.devices == 1:
        return 0.0
    if algorithm == "auto":
        algorithm = "torus" if cluster.hardware.torus else "hierarchical"
    if algorithm not in _ALGORITHMS or (algorithm == "torus" and not cluster.hardware.torus):
        others = ", ".join(name for name in _ALGORITHMS if name != "torus")
        raise ConfigError(
            f"algorithm: expected auto, {others} on {cluster.hardware.name}, got {algorithm!r}"
        )
    return cluster.hardware.launch_s + _ALGORITHMS[algorithm](cluster, nbytes)


def _adapters(cluster: Cluster) -> Link:
    """Return the adapters of a whole node, for the one of its devices that sends."""
    return Link(cluster.node_devices * cluster.between.bandwidth, cluster.between.latency)


def _ring(cluster: Cluster, nbytes: float) -> float:
    hops = [cluster.hardware.inside] if cluster.node_devices > 1 else []
    if cluster.nodes > 1:
        hops.append(_adapters(cluster))
    return max(ring_s(cluster.devices, nbytes, hop) for hop in hops)


def _pipelined_ring(cluster: Cluster, nbytes: float) -> float:
    _, bandwidth = _streaming(cluster)
    inside = (cluster.devices - cluster.nodes) * cluster.hardware.inside.latency
    latency = 2 * (inside + (cluster.nodes - 1) * cluster.between.latency)
    return latency + 2 * (cluster.devices - 1) / cluster.devices * nbytes / bandwidth


def _streaming(cluster: Cluster) -> tuple[float, float]:
    """Return the latency of a chain to and fro inside a node, and the least bandwidth."""
    inside, ways = cluster.hardware.inside, []
    if cluster.node_devices > 1:
        ways.append(inside.bandwidth)
    if cluster.nodes > 1:
        ways.append(_adapters(cluster).bandwidth)
    return 2 * (cluster.node_devices - 1) * inside.latency, min(ways)


def _tree(cluster: Cluster, nbytes: float) -> float:
    chain, bandwidth = _streaming(cluster)
    hops = 2 * math.ceil(math.log2(cluster.nodes)) * cluster.between.latency
    return chain + hops + 2 * (cluster.devices - 1) / cluster.devices * nbytes / bandwidth


def _double_tree(cluster: Cluster, nbytes: float) -> float:
    chain, bandwidth = _streaming(cluster)
    if cluster.nodes == 1:
        return _tree(cluster, nbytes)
    return chain + double_tree_s(cluster.nodes, nbytes, Link(bandwidth, cluster.between.latency))


def _halving_doubling(cluster: Cluster, nbytes: float) -> float:
    across = halving_doubling_s(cluster.nodes, nbytes, cluster.between)
    held = nbytes / cluster.nodes
    return across + halving_doubling_s(cluster.node_devices, held, cluster.hardware.inside)


def _hierarchical(cluster: Cluster, nbytes: float) -> float:
    group = cluster.node_devices
    across = tree_s(cluster.nodes, nbytes / group, cluster.between)
    return ring_s(group, nbytes, cluster.hardware.inside) + across


def _hierarchical_ring(cluster: Cluster, nbytes: float) -> float:
    levels = [
        (cluster.node_devices, cluster.hardware.inside),
        (cluster.nodes, cluster.between),
    ]
    return levels_s(levels, nbytes)


def _multilevel(cluster: Cluster, nbytes: float) -> float:
    line = cluster.hardware.between
    uplink = Link(cluster.uplink_share * line.bandwidth, line.latency)
    levels = [
        (cluster.node_devices, cluster.hardware.inside),
        (math.ceil(cluster.nodes / cluster.racks), line),
        (cluster.racks, uplink),
    ]
    return levels_s(levels, nbytes)


def _torus(cluster: Cluster, nbytes: float) -> float:
    hardware, shape = cluster.hardware, cluster.torus_shape
    inside = torus_s(shape, nbytes, hardware.inside, wrap=hardware.wrap)
    return inside + tree_s(cluster.nodes, nbytes / math.prod(shape), cluster.between)


def _parameter_server(cluster: Cluster, nbytes: float) -> float:
    ways = [root_s(cluster.node_devices, nbytes, cluster.hardware.inside)]
    if cluster.nodes > 1:
        others = cluster.devices - cluster.node_devices
        ways.append(root_s(others + 1, nbytes, _adapters(cluster)))
    return max(ways)


_ALGORITHMS: Mapping[str, Callable[[Cluster, float], float]] = {
    "ring": _ring,
    "pipelined_ring": _pipelined_ring,
    "tree": _tree,
    "double_tree": _double_tree,
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
    "hierarchical_ring": _hierarchical_ring,
    "multilevel": _multilevel,
    "torus": _torus,
    "parameter_server": _parameter_server,
}
