"""Signs of life, over a store in memory."""

import socket
import threading
import time

import pytest

from largebatch.fault_tolerance import FAILED, PEER
from largebatch.fault_tolerance.peers import Peers


class Store:
    """As JAX's, shared by threads of one process."""

    def __init__(self):
        self.values = {}
        self.lost = False
        self._lock = threading.Lock()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._lock:
            assert allow_overwrite or key not in self.values
            self.values[key] = value

    def key_value_dir_get(self, key):
        if self.lost:
            raise RuntimeError("UNAVAILABLE: connection reset\nand more")
        with self._lock:
            return [(name, value) for name, value in self.values.items() if name.startswith(key)]


@pytest.fixture
def store():
    return Store()


@pytest.mark.slow
def test_a_coordinator_that_never_answers_is_missed_by_its_port():
    """A request may wait for ever; only a refused connection says that nobody is there."""

    class Stuck(Store):
        def key_value_dir_get(self, key):
            held.wait(600)
            return []

    held = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        peers = Peers(Stuck(), 1, 2, 5, address)
        assert peers.wait(4.5) is None  # it listens
    word = peers.wait(300)
    assert (word.process, word.code) == (0, PEER)
    peers.leave()  # without asking the store
    peers.close()
    held.set()


@pytest.fixture
def started(store):
    made = []

    def start(process, processes=2, timeout_s=3.5):
        made.append(Peers(store, process, processes, timeout_s))
        return made[-1]

    yield start
    store.lost = False
    for peers in made:
        peers.close()


def test_a_last_word_reaches_the_others_and_not_its_speaker(started):
    first, second = started(0), started(1)
    second.leave(FAILED, "no such file")
    word = first.wait(300)
    assert (word.process, word.code, word.message) == (1, FAILED, "no such file")
    assert "process 1 (" in str(word)
    assert second.ended is None


@pytest.mark.slow
def test_silence_is_death_by_process_0s_clock(store, started):
    first, third = started(0, 3), started(2, 3)
    # Process 1 beats twice, from a clock of its own, and is then never heard of again.
    store.key_value_set("largebatch/beats/1", "node17, pid 9 1", allow_overwrite=True)
    time.sleep(2)
    store.key_value_set("largebatch/beats/1", "node17, pid 9 2", allow_overwrite=True)
    time.sleep(2)
    assert first.ended is None
    for peers in (first, third):
        word = peers.wait(300)
        assert (word.process, word.code) == (1, PEER)
        assert "node17, pid 9" in str(word)


def test_who_is_done_may_be_silent(started):
    first, second = started(0, timeout_s=0.6), started(1, timeout_s=0.6)
    second.close()
    assert first.wait(2.5) is None


def test_the_loss_of_the_coordinator_is_said(store, started):
    second = started(1)
    store.lost = True
    word = second.wait(300)
    assert (word.process, word.code) == (0, PEER)
    assert "UNAVAILABLE: connection reset" in word.message
