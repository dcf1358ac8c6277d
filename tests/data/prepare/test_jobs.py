import errno
import os
import signal
from pathlib import Path

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
    [(("data", "a.tar is damaged"), r"^a\.tar is damaged$"), (("die", 0), "worker process died")],
)
def test_an_error_in_a_worker_is_raised(task, message):
    with pytest.raises(DataError, match=message):
        list(jobs.run(act, [task, *[("return", 1)] * 5], 2))


def test_progress_in_a_log_is_a_line_at_intervals_and_one_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(jobs, "_LINE_EVERY_S", 0)
    with jobs.progress("writing", "images", 1000, 100) as advance:
        advance(300)
        monkeypatch.setattr(jobs, "_LINE_EVERY_S", 1000)
        advance(300)
        advance(300)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["400/1,000 images", "1,000/1,000 images"]


def test_progress_in_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with jobs.progress("writing", "images", 100) as advance:
        advance(50)
    assert "50/100" in capsys.readouterr().out


def test_the_first_twenty_lines_are_listed_and_the_rest_counted():
    lines = [f"line {i}" for i in range(21)]
    first = "; ".join(lines[:20])
    assert jobs.counted("things", lines[:20]) == f"20 things: {first}"
    assert jobs.counted("things", lines) == f"21 things: {first}; and 1 more"


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (OSError(errno.ENOSPC, "No space left", "there"), "there: No space left; "),
        (OSError(errno.ENOSPC, "No space left"), "here: No space left; "),
        (OSError("two\nlines"), "here: two lines; "),
    ],
)
def test_an_error_of_the_system_becomes_one_line_with_the_file(error, start):
    with pytest.raises(DataError) as caught, jobs.system_errors(Path("here")):
        raise error
    assert str(caught.value).startswith(start)
