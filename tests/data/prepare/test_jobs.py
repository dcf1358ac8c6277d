import os
import signal

import pytest

from largebatch.data.prepare import jobs
from largebatch.errors import DataError


def act(task):
    """Do what a task says."""
    what, value = task
    if what == "data":
        raise DataError(value)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.mark.multiprocess
def test_every_task_is_done_once_by_any_number_of_processes():
    tasks = [("return", i) for i in range(23)]
    for processes in (1, 2):
        assert sorted(jobs.run(act, tasks, processes)) == list(range(23))
    assert list(jobs.run(act, [], 2)) == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("task", "message"),
    [(("data", "a.tar is damaged"), r"^a\.tar is damaged$"), (("die", 0), "--processes")],
)
def test_an_error_in_a_worker_is_raised(task, message):
    with pytest.raises(DataError, match=message):
        list(jobs.run(act, [task, *[("return", 1)] * 5], 2))
