"""All-reduce by passing messages, step by step, with the data they carry.

Each rank holds a vector of chunks, each chunk the set of ranks whose contribution it holds. A step
is a list of messages (source, target, chunks, link); it lasts as long as its slowest one, and at
the end every rank must hold every contribution exactly once.
"""

import dataclasses
import math
from collections.abc import Iterable

from largebatch.parallel.clusters import Link


@dataclasses.dataclass
class World:
    """Ranks, the contributions to each chunk that they hold, and the time that has passed."""

    ranks: int
    chunk_bytes: list[float]
    seconds: float = 0.0

    def __post_init__(self):
        self.held = [[[rank] for _ in self.chunk_bytes] for rank in range(self.ranks)]

    def step(self, messages: Iterable[tuple[int, int, list[int], Link]], *, reduce: bool) -> None:
        """Send all messages at once; ``reduce`` adds what arrives, else it replaces."""
        messages = list(messages)
        sent = [[list(self.held[source][c]) for c in chunks] for source, _, chunks, _ in messages]
        for (_, target, chunks, _), contents in zip(messages, sent, strict=True):
            for chunk, content in zip(chunks, contents, strict=True):
                held = self.held[target][chunk]
                self.held[target][chunk] = held + content if reduce else content
        slowest = max(
            link.latency + sum(self.chunk_bytes[c] for c in chunks) / link.bandwidth
            for _, _, chunks, link in messages
        )
        self.seconds += slowest

    def check(self) -> None:
        """Every contribution is everywhere, once."""
        for held in self.held:
            for chunk in held:
                assert sorted(chunk) == list(range(self.ranks))


def ring(ranks: int, nbytes: float, links: list[Link]) -> World:
    """One ring; rank i sends over ``links[i]``."""
    world = World(ranks, [nbytes / ranks] * ranks)
    for shift, reduce in ((0, True), (1, False)):
        for step in range(ranks - 1):
            world.step(
                (
                    (rank, (rank + 1) % ranks, [(rank + shift - step) % ranks], links[rank])
                    for rank in range(ranks)
                ),
                reduce=reduce,
            )
    return world


def halving_doubling(
    ranks: int, nbytes: float, link: Link, *, inside: Link | None = None, group: int = 1
) -> World:
    """Recursive halving, then recursive doubling, the most distant first.

    Ranks beyond the largest power of two give all to a partner first, and receive the sum last.

    Args:
      ranks: number of ranks.
      nbytes: of each.
      link: between ranks.
      inside: between ranks of a node instead, if nodes have several.
      group: ranks of a node, a power of two.
    """
    power = 1 << (ranks.bit_length() - 1)
    world = World(ranks, [nbytes / power] * power)
    everything = list(range(power))
    extra = range(power, ranks)
    if extra:
        world.step([(rank, rank - power, everything, link) for rank in extra], reduce=True)
    mine = [everything for _ in range(power)]
    distances = [power >> i for i in range(1, power.bit_length())]

    def over(distance):
        return inside if inside and distance < group else link

    for distance in distances:
        messages = []
        for rank in range(power):
            half = len(mine[rank]) // 2
            low, high = mine[rank][:half], mine[rank][half:]
            away, mine[rank] = (low, high) if rank & distance else (high, low)
            messages.append((rank, rank ^ distance, away, over(distance)))
        world.step(messages, reduce=True)
    for distance in reversed(distances):
        messages = [(rank, rank ^ distance, mine[rank], over(distance)) for rank in range(power)]
        world.step(messages, reduce=False)
        mine = [sorted(mine[rank] + mine[rank ^ distance]) for rank in range(power)]
    if extra:
        world.step([(rank - power, rank, everything, link) for rank in extra], reduce=False)
    return world


def levels(sizes: list[int], nbytes: float, links: list[Link]) -> World:
    """Rings on nested levels, innermost first: scatter upwards, gather downwards."""
    ranks = math.prod(sizes)
    world = World(ranks, [nbytes / ranks] * ranks)
    span = [list(range(ranks)) for _ in range(ranks)]  # the chunks that a rank still reduces

    def messages(rings, link, shift, step):
        for members, pieces in rings:
            for i, rank in enumerate(members):
                target, piece = members[(i + 1) % len(members)], (i + shift - step) % len(members)
                yield rank, target, pieces[piece], link

    done, stride = [], 1
    for size, link in zip(sizes, links, strict=True):
        rings = []
        for first in (rank for rank in range(ranks) if rank // stride % size == 0):
            length = len(span[first]) // size
            pieces = [span[first][i * length : (i + 1) * length] for i in range(size)]
            rings.append(([first + i * stride for i in range(size)], pieces))
        for step in range(size - 1):
            world.step(messages(rings, link, 0, step), reduce=True)
        for members, pieces in rings:
            for i, member in enumerate(members):
                span[member] = pieces[(i + 1) % size]
        done.append((rings, link, size))
        stride *= size
    for rings, link, size in reversed(done):
        for step in range(size - 1):
            world.step(messages(rings, link, 1, step), reduce=False)
    return world


def root(ranks: int, nbytes: float, link: Link) -> World:
    """Each rank sends all to rank 0 over its one link, in turn, and receives the sum."""
    world = World(ranks, [nbytes])
    busy = Link(link.bandwidth, 0.0)  # while one message arrives, the next is already on its way
    for reduce in (True, False):
        for rank in range(1, ranks):
            over = link if rank == 1 else busy
            ends = (rank, 0) if reduce else (0, rank)
            world.step([(*ends, [0], over)], reduce=reduce)
    return world


def hierarchical(nodes: int, group: int, nbytes: float, inside: Link, between: Link) -> World:
    """Rings inside the nodes, and between equal ranks of all nodes."""
    return levels([group, nodes], nbytes, [inside, between])


def torus(width: int, height: int, nbytes: float, link: Link, *, both_ways: bool) -> World:
    """Rings along x, then along y; if ``both_ways``, the directions carry one half each.

    The directions have links of their own, so a step of both lasts as long as one of them.
    """
    return levels([width, height], nbytes / 2 if both_ways else nbytes, [link, link])
