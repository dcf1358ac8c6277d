"""α-β models of all-reduce algorithms on one kind of link.

Every one of N ranks contributes S bytes and sends B bytes/s in each direction; a is the latency of
a message. Reduction arithmetic is left out: libraries stream it while they receive.
Sources: Thakur, Rabenseifner & Gropp 2005 (ring, recursive halving-doubling); Sanders, Speck &
Träff 2009 (two trees); NVIDIA, "Massively scale your deep learning training with NCCL 2.4"; Ying et
al. 2018, arXiv 1811.06992, section 3 (torus).
"""

import math
from collections.abc import Sequence

import numpy as np

from largebatch.parallel.hardware import Link


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


def broadcast_s(ranks: int, nbytes: float, link: Link) -> float:
    """One rank's bytes to all, through two trees: half of ``double_tree_s``."""
    return double_tree_s(ranks, nbytes, link) / 2


def fit_link(ranks: int, measured: Sequence[tuple[float, float]]) -> Link:
    """Fit the link of ``ring_s`` to measured all-reduces.

    Least squares of (α + βS − t)/t over all points, α and β not below 0. The latency is all that
    does not grow with the bytes, including the cost of a call.

    Args:
      ranks: N.
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
