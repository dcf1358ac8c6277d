import errno
import os
import signal
from multiprocessing.context import SpawnProcess

import pytest

from largebatch.data.prepare import workers
from largebatch.errors import DataError


def act(task):
    """Does what a task says."""
    what, value = task
    if what == "mistake":
        raise DataError(value)
    if what == "bug":
        raise KeyError(value)
    if what == "full":
        raise OSError(errno.ENOSPC, value)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.mark.multiprocess
def test_every_task_is_done_once_by_however_many():
    tasks = [("return", i) for i in range(23)]
    for processes in (1, 2):
        assert sorted(workers.run(act, tasks, processes)) == list(range(23))
    assert list(workers.run(act, [], 2)) == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (("mistake", "a.tar is damaged"), DataError, r"^a\.tar is damaged$"),
        (("full", "no space"), OSError, r"no space$"),
        (("bug", "lost"), RuntimeError, "in a worker process:\n(.*\n)+KeyError: 'lost'"),
        (
            ("die", 0),
            DataError,
            r"a worker process died \(exit code -9; .*the same command goes on",
        ),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_and_does_not_hang(task, error, message):
    with pytest.raises(error, match=message):
        list(workers.run(act, [task, ("return", 1)], 2))


@pytest.mark.multiprocess
def test_a_worker_that_dies_before_its_first_task_is_told(monkeypatch):
    start = SpawnProcess.start

    def start_and_kill(worker):
        start(worker)
        worker.kill()
        worker.join()

    monkeypatch.setattr(SpawnProcess, "start", start_and_kill)
    with pytest.raises(DataError, match=r"a worker process died \(exit code -9"):
        list(workers.run(act, [("return", 1)], 2))


@pytest.mark.multiprocess
def test_a_worker_that_dies_between_its_answer_and_its_next_task_is_told(monkeypatch):
    received = workers._received

    def receive_and_kill(connection, worker):
        result = received(connection, worker)
        worker.kill()
        worker.join()
        return result

    monkeypatch.setattr(workers, "_received", receive_and_kill)
    with pytest.raises(DataError, match=r"a worker process died \(exit code -9"):
        list(workers.run(act, [("return", i) for i in range(3)], 2))


def test_a_process_that_is_no_worker_is_never_stopped():
    workers.stop_if_orphaned()
