import os
import signal
import threading
import time

import numpy as np
import pytest

from largebatch.data import reading
from largebatch.data.reading import Reading, ahead, read_ahead
from largebatch.errors import ConfigError, DataError


def squares(index):
    return np.full(3, index * index), os.getpid()


class Fatal:
    """Kills the process that reads one element, as the system does when memory runs out."""

    def __init__(self, index):
        self.index = index

    def __call__(self, index):
        if index == self.index:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Broken:
    def __call__(self, index):
        if index == 5:
            raise DataError("example 5 is truncated; fetch it again")
        return index


READINGS = {
    "caller": Reading(threads=0),
    "threads": Reading(threads=3, memory_bytes=400),
    "processes": Reading(threads=1, processes=2, memory_bytes=400),
}


@pytest.mark.parametrize("how", sorted(READINGS))
def test_elements_are_in_order_for_each_kind_of_reader(how):
    found = list(read_ahead(squares, 23, 100, READINGS[how]))
    np.testing.assert_array_equal(
        np.stack([square for square, _ in found]), np.tile(np.arange(23)[:, None] ** 2, 3)
    )
    readers = {pid for _, pid in found}
    assert (readers == {os.getpid()}) == (how != "processes")
    assert len(readers) == (2 if how == "processes" else 1)


@pytest.mark.parametrize(
    "how", ["caller", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_an_error_is_raised_at_its_element(how):
    elements = read_ahead(Broken(), 9, 1, READINGS[how])
    assert [next(elements) for _ in range(5)] == list(range(5))
    with pytest.raises(DataError, match="example 5 is truncated; fetch it again"):
        next(elements)


def test_a_killed_process_is_named_and_nothing_hangs():
    elements = read_ahead(Fatal(7), 100, 1, READINGS["processes"])
    got = []
    with pytest.raises(DataError, match=r"data\.processes=2 .*-9"):
        got.extend(elements)
    assert got == list(range(len(got)))
    assert len(got) <= 7  # what the killed process had ready may be lost with it


def test_negative_numbers_are_refused():
    for field in ("threads", "processes", "memory_bytes"):
        with pytest.raises(ConfigError, match=rf"data\.{field}: .*got -1"):
            Reading(**{field: -1})


def test_ahead_takes_no_more_than_it_may():
    taken = []

    def elements():
        for index in range(100):
            taken.append(index)
            yield index

    given = ahead(elements(), 2)
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

    given = ahead(elements(broken=True), 2)
    assert next(given) == 1
    with pytest.raises(KeyError, match="planned"):
        next(given)
    assert closed.is_set()
    closed.clear()
    given = ahead(elements(broken=False), 3)
    assert [next(given), next(given)] == [1, 2]
    given.close()
    assert closed.is_set()
    assert not [t for t in threading.enumerate() if t.name == "largebatch-ahead"]


def test_ahead_with_patience_yields_none_while_it_waits_and_loses_nothing():
    wanted = threading.Event()

    def elements():
        yield 1
        assert wanted.wait(300)
        yield 2
        raise KeyError("planned")

    given = ahead(elements(), 2, patience=0.02)
    got = [next(given)]
    while got.count(None) < 3:  # the first, too, may take longer than the patience
        got.append(next(given))
    wanted.set()
    with pytest.raises(KeyError, match="planned"):
        got.extend(given)
    assert [x for x in got if x is not None] == [1, 2]


def test_closing_does_not_wait_for_a_source_that_hangs(monkeypatch):
    monkeypatch.setattr(reading, "_FAREWELL_S", 0.1)
    released, closed = threading.Event(), threading.Event()

    def elements():
        try:
            yield 1
            released.wait(600)
            yield 2
        finally:
            closed.set()

    given = ahead(elements(), 2)
    assert next(given) == 1
    given.close()
    assert not closed.is_set()  # the thread is still within the element
    released.set()
    assert closed.wait(300)  # and closes its source afterwards
