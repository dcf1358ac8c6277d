"""All-reduce by passing messages, step by step, with the data they carry.

Each rank holds a vector of chunks, each chunk the set of ranks whose contribution it holds. A step
is a list of messages (source, target, chunks, link); it lasts as long as its slowest one, and at
the end every rank must hold every contribution exactly once.
"""

import dataclasses
import math
from collections.abc import Iterable

from largebatch.parallel.hardware import Link


@dataclasses.dataclass
class World:
    """Ranks, what they hold of each chunk, and the time that has passed."""

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


def ring_phases(world: World, rings: list[tuple[list[int], list[list[int]], Link]]) -> tuple:
    """Reduce-scatter and all-gather on several rings at once, as two lists of steps.

    Args:
      world: where.
      rings: for each its ranks in order, one list of chunks for each of them, and the link.
    """
    length = len(rings[0][0])

    def messages(shift: int, step: int):
        for members, pieces, link in rings:
            for i, rank in enumerate(members):
                piece = pieces[(i + shift - step) % length]
                yield rank, members[(i + 1) % length], piece, link

    scatter = [lambda s=s: world.step(messages(0, s), reduce=True) for s in range(length - 1)]
    gather = [lambda s=s: world.step(messages(1, s), reduce=False) for s in range(length - 1)]
    return scatter, gather


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

    Ranks beyond the largest power of two give all to a partner first, and are given the sum last.

    Args:
      ranks: how many.
      nbytes: of each.
      link: between ranks.
      inside: between ranks of a node instead, if nodes have several.
      group: ranks of a node, a power of two.
    """
    power = 1 << (ranks.bit_length() - 1)
    world = World(ranks, [nbytes / power] * power)
    everything = list(range(power))
    if ranks > power:
        extra = [(rank, rank - power, everything, link) for rank in range(power, ranks)]
        world.step(extra, reduce=True)
    mine = [everything for _ in range(power)]
    distances = []
    distance = power // 2
    while distance:
        distances.append(distance)
        over = inside if inside and distance < group else link
        messages = []
        for rank in range(power):
            half = len(mine[rank]) // 2
            low, high = mine[rank][:half], mine[rank][half:]
            away, kept = (low, high) if rank & distance else (high, low)
            messages.append((rank, rank ^ distance, away, over))
            mine[rank] = kept
        world.step(messages, reduce=True)
        distance //= 2
    for distance in reversed(distances):
        over = inside if inside and distance < group else link
        messages = [(rank, rank ^ distance, mine[rank], over) for rank in range(power)]
        world.step(messages, reduce=False)
        mine = [sorted(mine[rank] + mine[rank ^ distance]) for rank in range(power)]
    if ranks > power:
        extra = [(rank - power, rank, everything, link) for rank in range(power, ranks)]
        world.step(extra, reduce=False)
    return world


def levels(sizes: list[int], nbytes: float, links: list[Link]) -> World:
    """Rings on nested levels, innermost first: scatter upwards, gather downwards."""
    ranks = math.prod(sizes)
    world = World(ranks, [nbytes / ranks] * ranks)
    span = [list(range(ranks)) for _ in range(ranks)]
    gathers, stride = [], 1
    for size, link in zip(sizes, links, strict=True):
        rings = []
        for first in range(ranks):
            if first // stride % size == 0:
                members = [first + i * stride for i in range(size)]
                length = len(span[first]) // size
                pieces = [span[first][i * length : (i + 1) * length] for i in range(size)]
                rings.append((members, pieces, link))
        scatter, gather = ring_phases(world, rings)
        for step in scatter:
            step()
        gathers.append(gather)
        for members, pieces, _ in rings:
            for i, member in enumerate(members):
                span[member] = pieces[(i + 1) % size]
        stride *= size
    for gather in reversed(gathers):
        for step in gather:
            step()
    return world


def root(ranks: int, nbytes: float, link: Link) -> World:
    """Everybody sends all to rank 0, over its one link one after the other, and is sent the sum."""
    world = World(ranks, [nbytes])
    busy = Link(link.bandwidth, 0.0)  # while one message arrives, the next is already on its way
    for reduce in (True, False):
        for rank in range(1, ranks):
            over = link if rank == 1 else busy
            ends = (rank, 0) if reduce else (0, rank)
            world.step([(*ends, [0], over)], reduce=reduce)
    return world


def hierarchical(nodes: int, group: int, nbytes: float, inside: Link, between: Link) -> World:
    """Rings inside the nodes, and between equals of all nodes."""
    ranks = nodes * group
    world = World(ranks, [nbytes / ranks] * ranks)
    # Piece d of a node's ring are the chunks [d·nodes, (d+1)·nodes).
    pieces = [list(range(d * nodes, (d + 1) * nodes)) for d in range(group)]
    members = [[node * group + d for d in range(group)] for node in range(nodes)]
    scatter, gather = ring_phases(world, [(m, pieces, inside) for m in members])
    for step in scatter:
        step()
    across = []
    for d in range(group):
        owned = pieces[(d + 1) % group]
        equals = [node * group + d for node in range(nodes)]
        across.append((equals, [[chunk] for chunk in owned], between))
    for phase in ring_phases(world, across):
        for step in phase:
            step()
    for step in gather:
        step()
    return world


def torus(width: int, height: int, nbytes: float, link: Link, *, both_ways: bool) -> World:
    """Rings along x, then along y on what x has scattered; half of it each way round if asked."""
    ways = 2 if both_ways else 1
    ranks = width * height
    world = World(ranks, [nbytes / ranks / ways] * (ranks * ways))

    def rank(x: int, y: int) -> int:
        return x * height + y

    def chunk(x: int, y: int, way: int) -> int:
        return way * ranks + x * height + y

    def column(x: int, way: int) -> list[int]:
        return [chunk(x, y, way) for y in range(height)]

    def run(phases: list[list]) -> None:
        # The two directions have links of their own: a step of both lasts as long as one of them.
        for steps in zip(*phases, strict=True):
            start = world.seconds
            took = []
            for step in steps:
                world.seconds = start
                step()
                took.append(world.seconds)
            world.seconds = max(took)

    def order(length: int, way: int) -> list[int]:
        return list(range(length)) if way == 0 else list(range(length))[::-1]

    along_x = []
    for way in range(ways):
        xs = order(width, way)
        rings = [
            ([rank(x, y) for x in xs], [column(x, way) for x in xs], link) for y in range(height)
        ]
        along_x.append(ring_phases(world, rings))
    run([scatter for scatter, _ in along_x])
    along_y = []
    for way in range(ways):
        ys = order(height, way)
        rings = []
        for i, x in enumerate(order(width, way)):
            owned = order(width, way)[(i + 1) % width]
            pieces = [[chunk(owned, y, way)] for y in ys]
            rings.append(([rank(x, y) for y in ys], pieces, link))
        along_y.append(ring_phases(world, rings))
    run([scatter for scatter, _ in along_y])
    run([gather for _, gather in along_y])
    run([gather for _, gather in along_x])
    return world
