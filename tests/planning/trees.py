"""Two complementary binary trees, their edges coloured, and a reduction by passing blocks.

After Sanders, Speck & Träff 2009: every rank but 0 is an inner node of one tree at most, and edges
take turns so that no rank sends or receives two blocks in a round.
"""


def two_trees(ranks: int) -> tuple[dict[int, int], dict[int, int]]:
    """Each rank's parent in both trees; rank 0 is above both roots."""
    first: dict[int, int] = {}

    def place(low, high, parent):
        if low <= high:
            middle = low + (1 << ((high - low + 1).bit_length() - 1)) - 1
            first[middle] = parent
            place(low, middle - 1, middle)
            place(middle + 1, high, middle)

    place(1, ranks - 1, 0)
    others = ranks - 1

    def moved(rank):  # mirrored, or shifted where mirroring keeps who is a leaf
        if rank == 0:
            return 0
        return ranks - rank if others % 2 == 0 else rank % others + 1

    return first, {moved(rank): moved(parent) for rank, parent in first.items()}


def coloured(trees) -> dict[tuple[int, int], int]:
    """0 or 1 for each edge (tree, lower end): the parity of the rounds in which it carries."""
    ranks = len(trees[0]) + 1
    unlike: dict[tuple[int, int], list] = {}
    for rank in range(ranks):
        out = [(tree, rank) for tree in (0, 1) if rank]
        into = [(tree, low) for tree in (0, 1) for low, high in trees[tree].items() if high == rank]
        assert len(into) <= 2
        for pair in (out, into):
            if len(pair) == 2:
                unlike.setdefault(pair[0], []).append(pair[1])
                unlike.setdefault(pair[1], []).append(pair[0])
    colours: dict[tuple[int, int], int] = {}
    for edge in unlike:
        waiting = [edge] if edge not in colours else []
        colours.setdefault(edge, 0)
        while waiting:
            here = waiting.pop()
            for other in unlike[here]:
                if other not in colours:
                    colours[other] = 1 - colours[here]
                    waiting.append(other)
                assert colours[other] != colours[here]
    return colours


def reduction_rounds(ranks: int, blocks: int) -> int:
    """Rounds until rank 0 has every block of both trees from everybody, once."""
    trees = two_trees(ranks)
    colours = coloured(trees)
    held = [[[[rank] for _ in range(blocks)] for rank in range(ranks)] for _ in trees]
    below = [
        {rank: [low for low, high in tree.items() if high == rank] for rank in range(ranks)}
        for tree in trees
    ]
    sent = [[0] * ranks for _ in trees]
    rounds = 0
    while any(count < blocks for tree in sent for count in tree[1:]):
        going = [
            (tree, rank)
            for tree in (0, 1)
            for rank in range(1, ranks)
            if colours.get((tree, rank), 0) == rounds % 2
            and sent[tree][rank] < blocks
            and all(sent[tree][low] > sent[tree][rank] for low in below[tree][rank])
        ]
        senders = [rank for _, rank in going]
        receivers = [trees[tree][rank] for tree, rank in going]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        for tree, rank in going:
            block = sent[tree][rank]
            held[tree][trees[tree][rank]][block] += held[tree][rank][block]
            sent[tree][rank] += 1
        rounds += 1
    for tree in held:
        assert all(sorted(block) == list(range(ranks)) for block in tree[0])
    return rounds
