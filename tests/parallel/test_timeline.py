"""Two streams, against cases done by hand and a clock that ticks."""

import random

from largebatch.parallel.timeline import Compute, Done, Start, replay


def test_transfers_queue_and_shares_are_of_seconds():
    found = replay(
        [
            Compute("a", 1),
            Start("big", 300, 3),  # 1 to 4
            Compute("b", 1),
            Start("small", 100, 2),  # ready at 2, runs from 4 to 6
            Compute("c", 3),  # 2 to 5
            Done("small"),
            Compute("d", 1),  # 6 to 7
            Done("big"),
        ]
    )
    begins = [(t.name, t.begin_s, t.end_s, t.hidden_s) for t in found.transfers]
    assert begins == [("big", 1, 4, 3), ("small", 4, 6, 1)]
    assert (found.total_s, found.compute_s, found.exposed_s) == (7, 6, 1)
    assert found.hidden_share == 4 / 5


def test_without_transfers_nothing_is_exposed():
    for program in ([], [Compute("a", 1)], [Start("r", 0, 0), Compute("a", 1), Done("r")]):
        found = replay(program)
        assert found.exposed_s == 0
        assert found.hidden_share == 1


def ticked(operations):
    """The same program, a second at a time: (total, exposed, hidden)."""
    left = list(operations)
    queue, ended, clock, exposed, hidden = [], set(), 0, 0, 0
    working = 0
    while left or queue or working:
        while not working and left:
            head = left[0]
            if isinstance(head, Compute):
                working = head.seconds
            elif isinstance(head, Start):
                queue.append([head.name, head.seconds])
            elif head.name not in ended:
                break
            left.pop(0)
        while queue and not queue[0][1]:
            ended.add(queue.pop(0)[0])
        if not working and not queue:
            continue
        if queue:
            queue[0][1] -= 1
            hidden += bool(working)
            exposed += not working
        working = max(0, working - 1)
        clock += 1
        while queue and not queue[0][1]:
            ended.add(queue.pop(0)[0])
    return clock, exposed, hidden


def test_random_programs_go_as_a_clock_that_ticks():
    draw = random.Random(0)
    for _ in range(300):
        program, started, waited = [], [], []
        for i in range(draw.randint(1, 14)):
            kind = draw.choice(["compute", "start", "done"])
            if kind == "compute":
                program.append(Compute(str(i), draw.randint(0, 4)))
            elif kind == "start":
                started.append(str(i))
                program.append(Start(str(i), draw.randint(0, 9), draw.randint(1, 4)))
            elif open_ := [name for name in started if name not in waited]:
                waited.append(draw.choice(open_))
                program.append(Done(waited[-1]))
        found = replay(program)
        assert (found.total_s, found.exposed_s, found.hidden_s) == ticked(program), program
        assert found.exposed_s + found.hidden_s == found.network_s
