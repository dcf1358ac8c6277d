"""The time of an all-reduce over all devices of a cluster: α-β models of its algorithms.

Every one of N ranks contributes S bytes and sends B bytes/s in each direction; a is the latency of
a message. Reduction arithmetic is left out: libraries stream it while they receive.
Sources: Thakur, Rabenseifner & Gropp 2005 (ring, recursive halving-doubling); Sanders, Speck &
Träff 2009 (two trees); NVIDIA, "Massively scale your deep learning training with NCCL 2.4"; Ying et
al. 2018, arXiv 1811.06992, section 3 (torus).
"""

import math
from collections.abc import Callable, Mapping, Sequence

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import Cluster, Link


def all_reduce_s(cluster: Cluster, nbytes: float, algorithm: str = "auto") -> float:
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
      algorithm: one of these, the names of `ALGORITHMS` and auto.

    Raises:
      ConfigError: an unknown algorithm, or a torus on hardware without one.
    """
    if cluster.devices == 1:
        return 0.0
    if algorithm == "auto":
        algorithm = "torus" if cluster.hardware.torus else "hierarchical"
    if algorithm not in ALGORITHMS or (algorithm == "torus" and not cluster.hardware.torus):
        others = ", ".join(name for name in ALGORITHMS if name != "torus")
        raise ConfigError(
            f"algorithm: expected auto, {others} on {cluster.hardware.name}, got {algorithm!r}"
        )
    return cluster.hardware.launch_s + ALGORITHMS[algorithm](cluster, nbytes)


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


ALGORITHMS: Mapping[str, Callable[[Cluster, float], float]] = {
    "parameter_server": _parameter_server,
    "ring": _ring,
    "pipelined_ring": _pipelined_ring,
    "halving_doubling": _halving_doubling,
    "tree": _tree,
    "double_tree": _double_tree,
    "hierarchical": _hierarchical,
    "hierarchical_ring": _hierarchical_ring,
    "multilevel": _multilevel,
    "torus": _torus,
}


# ---- on one kind of link


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


def halving_doubling_s(ranks: int, nbytes: float, link: Link) -> float:
    """Recursive halving and doubling: ``tree_s`` among the largest power of two, P, of the ranks.

    The N − P others first send everything to a partner, and receive the sum from it at the end:
    another 2(a + S/B) where N is no power of two.
    """
    power = 1 << (ranks.bit_length() - 1)
    folded = 0.0 if power == ranks else 2 * (link.latency + nbytes / link.bandwidth)
    return folded + tree_s(power, nbytes, link)


def double_tree_s(ranks: int, nbytes: float, link: Link, *, blocks: int = 0) -> float:
    """Two complementary binary trees that carry a half each, in blocks, one after the other.

    Every rank is an inner node of one tree and a leaf of the other, so it sends and receives a
    block in every round, of the two trees in turn. With k blocks of S/(2k) in each tree of height
    h = ⌈log₂(N+1)⌉ − 1 and one rank above both roots, a reduction ends after at most 2(h + k)
    rounds of a + S/(2kB), and so does the broadcast after it: 4(h + k)(a + S/(2kB)).

    Args:
      ranks: N.
      nbytes: S.
      link: of every rank.
      blocks: k; 0: the best, √(hS/(2aB)), which makes it 4ha + 2S/B + 4√(2haS/B).
    """
    if ranks == 1:
        return 0.0
    height = max(1, math.ceil(math.log2(ranks + 1)) - 1)
    if not blocks:
        best = math.sqrt(height * nbytes / (2 * link.latency * link.bandwidth))
        around = {max(1, math.floor(best)), math.ceil(best)} - {0}
        return min(double_tree_s(ranks, nbytes, link, blocks=k) for k in around)
    block = nbytes / (2 * blocks)
    return 4 * (height + blocks) * (link.latency + block / link.bandwidth)


def levels_s(levels: Sequence[tuple[int, Link]], nbytes: float) -> float:
    """Rings level by level, each with the part that the levels below have scattered.

    Reduce-scatter upwards and all-gather downwards: Σ 2(nᵢ−1)(aᵢ + Sᵢ/(nᵢBᵢ)), S₁ = S,
    Sᵢ₊₁ = Sᵢ/nᵢ.

    Args:
      levels: ranks of a ring and its link, innermost first.
      nbytes: S.
    """
    total, held = 0.0, nbytes
    for ranks, link in levels:
        total += ring_s(ranks, held, link)
        held /= ranks
    return total


def torus_s(shape: Sequence[int], nbytes: float, link: Link, *, wrap: int = 1) -> float:
    """Rings axis by axis, each with the part that the axes before it have scattered.

    For X × Y: 2(X−1)a + 2(X−1)/X · S/B + 2(Y−1)a + 2(Y−1)/Y · S/(X·B), and so on.

    Args:
      shape: chips along each axis.
      nbytes: S.
      link: from a chip to one neighbour. An axis that closes to a ring is used both ways round, so
        B is twice its bandwidth; a line goes to and fro as one ring, so B is its bandwidth.
      wrap: an axis closes if its length is a multiple of this.
    """
    ways = (2 if length > 2 and length % wrap == 0 else 1 for length in shape)
    axes = [Link(way * link.bandwidth, link.latency) for way in ways]
    return levels_s(list(zip(shape, axes, strict=True)), nbytes)


def root_s(ranks: int, nbytes: float, link: Link) -> float:
    """A parameter server: every rank sends to the root, which adds up and sends back.

    The root's link takes N−1 times S in and N−1 times out: 2a + 2(N−1) · S/B.
    """
    if ranks == 1:
        return 0.0
    return 2 * link.latency + 2 * (ranks - 1) * nbytes / link.bandwidth
