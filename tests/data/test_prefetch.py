import threading
import time

import pytest

from largebatch.data import prefetch
from largebatch.data.prefetch import ahead, in_threads


def test_closing_does_not_wait_for_work_that_hangs(monkeypatch):
    monkeypatch.setattr(prefetch, "_FAREWELL_S", 0.1)
    released, done = threading.Event(), []

    def work(item):
        if item:
            released.wait(600)
        done.append(item)
        return item

    results = in_threads(work, range(9), 2, 3)
    assert next(results) == 0
    results.close()
    released.set()
    limit = time.monotonic() + 300
    while 1 not in done and time.monotonic() < limit:
        time.sleep(0.001)
    time.sleep(0.05)
    assert set(done) <= {0, 1, 2}  # what waited is dropped


def plain(elements, count, **options):
    return ahead(elements, lambda element: element, count, **options)


def test_ahead_takes_no_more_than_it_may():
    taken = []

    def elements():
        for index in range(100):
            taken.append(index)
            yield index

    given = plain(elements(), 2)
    assert next(given) == 0
    limit = time.monotonic() + 300
    while len(taken) < 3 and time.monotonic() < limit:
        time.sleep(0.001)
    time.sleep(0.05)  # time enough to take too much
    assert taken == [0, 1, 2]
    assert list(given) == list(range(1, 100))


def test_ahead_raises_errors_and_closes_its_source():
    closed = threading.Event()

    def elements(broken):
        try:
            yield 1
            if broken:
                raise KeyError("planned")
            while True:
                yield 2
        finally:
            closed.set()

    given = plain(elements(broken=True), 2)
    assert next(given) == 1
    with pytest.raises(KeyError, match="planned"):
        next(given)
    assert closed.is_set()
    closed.clear()
    given = plain(elements(broken=False), 3)
    assert [next(given), next(given)] == [1, 2]
    given.close()
    assert closed.is_set()
    assert not [t for t in threading.enumerate() if t.name == "largebatch-ahead"]


def test_ahead_polls_while_it_waits_and_loses_nothing():
    wanted = threading.Event()

    def elements():
        yield 1
        assert wanted.wait(300)
        yield 2
        raise KeyError("planned")

    polls, got = [], []

    def poll(waited, arrived):
        polls.append((waited, arrived))
        if len(polls) > 6:
            wanted.set()

    given = plain(elements(), 2, poll=poll, patience=0.02)
    with pytest.raises(KeyError, match="planned"):
        got.extend(given)
    assert got == [1, 2]
    assert [arrived for _, arrived in polls].count(True) == 2
    waits = [waited for waited, _ in polls[-4:]]
    assert waits == sorted(waits)
    assert waits[-1] > 0.06  # of the whole wait
