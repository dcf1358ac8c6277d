"""All-reduce by passing messages, step by step, with the data they carry.

Each rank holds a vector of chunks, each chunk the set of ranks whose contribution it holds. A step
is a list of messages (source, target, chunks, link); it lasts as long as its slowest one, and at
the end every rank must hold every contribution exactly once.
"""

import dataclasses
from collections.abc import Iterable

from largebatch.cluster.hardware import Link


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


def halving_doubling(ranks: int, nbytes: float, link: Link) -> World:
    """Recursive halving, then recursive doubling; ``ranks`` a power of two."""
    world = World(ranks, [nbytes / ranks] * ranks)
    mine = [list(range(ranks)) for _ in range(ranks)]
    distances = []
    distance = ranks // 2
    while distance:
        distances.append(distance)
        messages = []
        for rank in range(ranks):
            half = len(mine[rank]) // 2
            low, high = mine[rank][:half], mine[rank][half:]
            away, kept = (low, high) if rank & distance else (high, low)
            messages.append((rank, rank ^ distance, away, link))
            mine[rank] = kept
        world.step(messages, reduce=True)
        distance //= 2
    for distance in reversed(distances):
        messages = [(rank, rank ^ distance, mine[rank], link) for rank in range(ranks)]
        world.step(messages, reduce=False)
        mine = [sorted(mine[rank] + mine[rank ^ distance]) for rank in range(ranks)]
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
