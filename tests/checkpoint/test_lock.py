"""Two runs in one directory: one of them is refused, whatever moment it comes at."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from largebatch.checkpoint import lock
from largebatch.errors import UserError

HOLDER = """
import sys
from pathlib import Path
from largebatch.errors import UserError
from largebatch.checkpoint.lock import hold
for line in sys.stdin:
    try:
        with hold(Path(line.strip()), note=lambda m: None):
            print("won", flush=True)
            sys.stdin.readline()
    except UserError as error:
        print(f"refused: {error}", flush=True)
        sys.stdin.readline()
    print("free", flush=True)
"""


class Holder:
    """Another process, which takes a lock and lets it go when told."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holders():
    with contextlib.ExitStack() as stack:

        def make(count):
            return [stack.enter_context(contextlib.closing(Holder())) for _ in range(count)]

        yield make


def held(directory):
    return lock.hold(directory, note=pytest.fail)


def test_a_lock_names_its_holder_and_goes(tmp_path):
    directory = tmp_path / "new" / "run"
    with held(directory):
        assert lock.holder(directory).pid == os.getpid()
        assert lock.is_held(directory)
    assert not list(directory.iterdir())
    with pytest.raises(KeyError), held(directory):
        raise KeyError
    assert not list(directory.iterdir())
    assert not lock.is_held(directory)


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, holders):
    (other,) = holders(1)
    other.ask(tmp_path)
    assert other.answer() == "won"
    other.process.send_signal(signal.SIGSTOP)  # it lives
    assert lock.is_held(tmp_path)
    with pytest.raises(UserError) as caught, held(tmp_path):
        pass
    for words in (str(tmp_path), f"process {other.process.pid}", "--workdir"):
        assert words in str(caught.value)
    other.process.kill()
    other.process.wait()
    assert (tmp_path / lock.NAME).exists()
    assert not lock.is_held(tmp_path)
    with held(tmp_path):
        assert lock.holder(tmp_path).pid == os.getpid()


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"null", b"[" * 10**5, b'{"host": "a"}'])
def test_what_a_lock_file_says_decides_nothing(tmp_path, content):
    (tmp_path / lock.NAME).write_bytes(content)
    assert lock.holder(tmp_path) is None
    with held(tmp_path):
        (tmp_path / lock.NAME).write_bytes(content)
        with pytest.raises(UserError, match="another process"), held(tmp_path):
            pass


def test_looking_at_a_lock_refuses_nobody(tmp_path):
    ended = threading.Event()

    def look():
        while not ended.is_set():
            lock.is_held(tmp_path)

    observer = threading.Thread(target=look)
    observer.start()
    try:
        for _ in range(200):
            with held(tmp_path):
                pass
    finally:
        ended.set()
        observer.join()


def test_where_there_are_no_locks_a_note_says_so(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", fails)
    said = []
    with lock.hold(tmp_path, note=said.append):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert str(tmp_path) in said[0]


def test_the_lock_of_another_file_is_left_alone(tmp_path):
    with held(tmp_path):
        (tmp_path / lock.NAME).unlink()
        (tmp_path / lock.NAME).write_text("another run's")
    assert (tmp_path / lock.NAME).read_text() == "another run's"


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run" / lock.NAME).mkdir(parents=True)
    for directory in (tmp_path / "file" / "run", tmp_path / "run"):
        with pytest.raises(UserError, match="--workdir"), held(directory):
            pass


@pytest.mark.multiprocess
def test_of_many_that_come_at_once_exactly_one_wins(tmp_path, holders):
    others = holders(4)
    for _ in range(20):
        for other in others:
            other.ask(tmp_path)
        answers = [other.answer() for other in others]
        assert sorted(answer.partition(":")[0] for answer in answers) == ["refused"] * 3 + ["won"]
        winner = others[answers.index("won")]
        assert lock.holder(tmp_path).pid == winner.process.pid
        for other in others:
            other.ask("")
        assert {other.answer() for other in others} == {"free"}
        assert not list(tmp_path.iterdir())
