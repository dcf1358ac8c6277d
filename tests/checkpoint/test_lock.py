"""Two runs in one directory, or one bucket: one is refused, whatever moment it comes at."""

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
from largebatch.object_store import Bucket

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
    """Another process, which takes a lock and lets it go when asked."""

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
        assert lock.holder(directory).startswith(f"process {os.getpid()} on")
    assert not list(directory.iterdir())
    with pytest.raises(KeyError), held(directory):
        raise KeyError
    assert not list(directory.iterdir())
    assert lock.holder(directory) is None


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path, holders):
    (other,) = holders(1)
    other.ask(tmp_path)
    assert other.answer() == "won"
    other.process.send_signal(signal.SIGSTOP)  # it lives
    assert f"process {other.process.pid} on" in lock.holder(tmp_path)
    with pytest.raises(UserError) as caught, held(tmp_path):
        pass
    for words in (str(tmp_path), f"process {other.process.pid}", "--workdir"):
        assert words in str(caught.value)
    other.process.kill()
    other.process.wait()
    assert (tmp_path / lock.NAME).exists()
    assert lock.holder(tmp_path) is None
    with held(tmp_path):
        assert f"process {os.getpid()} on" in lock.holder(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"null", b"[" * 10**5, b'{"holder": "\\n", "token": "a"}']
)
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
            lock.holder(tmp_path)

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
        assert f"process {os.getpid()} on" in (tmp_path / lock.NAME).read_text()
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
        assert f"process {winner.process.pid} on" in lock.holder(tmp_path)
        for other in others:
            other.ask("")
        assert {other.answer() for other in others} == {"free"}
        assert not list(tmp_path.iterdir())


LEASEHOLDER = """
import sys
from largebatch.checkpoint import lock
from largebatch.object_store import Bucket
with lock.lease(Bucket(sys.argv[1]), note=print, lost=print):
    print("held", flush=True)
    sys.stdin.readline()
"""
ELSEWHERE = {"holder": "process 7 elsewhere", "token": "0123456789abcdef"}


@pytest.fixture
def bucket(served, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lock, "BEAT_S", 0.05)
    monkeypatch.setattr(lock, "PATIENCE_S", 1.0)
    return Bucket(served[1])


def lease(bucket, **calls):
    return lock.lease(bucket, **{"note": lambda _: None, "lost": pytest.fail, **calls})


def token_in(bucket):
    return json.loads(bucket.read(lock.NAME)[0])["token"]


def write(bucket, **fields):
    bucket.write(lock.NAME, json.dumps(ELSEWHERE | fields).encode())


def test_a_second_process_in_a_bucket_is_refused_and_later_admitted(bucket, tmp_path):
    with lease(bucket), pytest.raises(UserError, match="in use"), lease(Bucket(bucket.url)):
        pass
    assert bucket.objects() == {}
    with lease(Bucket(bucket.url)):
        assert list(bucket.objects()) == [lock.NAME]
        assert f"process {os.getpid()} on" in lock.leaseholder(bucket)
    assert not list((tmp_path / "cache").rglob("leases/*"))


@pytest.mark.parametrize("cached", [True, False])
def test_a_lease_of_a_process_of_this_host(bucket, tmp_path, monkeypatch, cached):
    """Refused while it lives; after kill -9 taken over at once, without a cache after a wait."""
    if not cached:
        (tmp_path / "cache").touch()
    with subprocess.Popen(
        [sys.executable, "-c", LEASEHOLDER, bucket.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        if cached:
            process.send_signal(signal.SIGSTOP)  # it lives, without heartbeats
            with pytest.raises(UserError, match=f"process {process.pid} on"), lease(bucket):
                pass
        process.kill()
    notes = []
    monkeypatch.setattr(lock, "PATIENCE_S", 1000.0 if cached else 1.0)
    with lease(bucket, note=notes.append):
        pass
    assert len(notes) == (1 if cached else 2)


@pytest.mark.parametrize("text", [None, b"damaged"])
def test_a_lease_of_another_host_without_heartbeat_is_taken_over(bucket, text):
    write(bucket)
    if text:
        bucket.write(lock.NAME, text)
    with lease(bucket):
        assert token_in(bucket) != ELSEWHERE["token"]


def test_a_lease_of_another_host_with_heartbeats_is_kept(bucket, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE_S", 60.0)
    write(bucket)
    ended = threading.Event()

    def beat():
        beats = 0
        while not ended.wait(0.02):
            beats += 1
            write(bucket, beat=beats)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="elsewhere"), lease(bucket):
            pass
    finally:
        ended.set()
        thread.join()


def test_a_holder_notices_that_its_lease_was_taken(bucket):
    lost, noticed = [], threading.Event()

    def notice(reason):
        lost.append(reason)
        noticed.set()

    with lease(bucket, lost=notice):
        write(bucket)
        assert noticed.wait(60)
    assert len(lost) == 1
    assert token_in(bucket) == ELSEWHERE["token"]  # not ours to delete


def test_a_heartbeat_whose_answer_is_lost_keeps_the_lease(served, bucket):
    gateway, _ = served

    def beat():
        return json.loads(bucket.read(lock.NAME)[0])["beat"]

    with lease(bucket):
        token, before = token_in(bucket), beat()
        gateway.fault = lambda method, path, number: "late" if number % 3 == 0 else ""
        limit = threading.Event()
        for _ in range(600):
            if beat() > before + 4:
                break
            limit.wait(0.1)
        assert token_in(bucket) == token
    gateway.fault = None
    assert bucket.objects() == {}
