"""Two runs in one directory, or one bucket: one is refused, whatever moment it comes at."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from largebatch.checkpoint import lock
from largebatch.errors import UserError
from largebatch.object_store import Bucket

HOLDER = """
import sys
from pathlib import Path
from largebatch.checkpoint import lock
from largebatch.object_store import Bucket
where = sys.argv[1]
held = (
    lock.lease(Bucket(where), note=print, lost=print)
    if "://" in where
    else lock.hold(Path(where), note=print)
)
with held:
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holder(where):
    """Another process, which has the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def held(directory):
    return lock.hold(directory, note=pytest.fail)


def test_a_lock_names_its_holder_and_goes(tmp_path):
    directory = tmp_path / "new" / "run"
    with held(directory):
        assert lock.holder(directory).startswith(f"process {os.getpid()} on")
    with pytest.raises(KeyError), held(directory):
        raise KeyError
    assert not list(directory.iterdir())
    assert lock.holder(directory) is None


def test_a_file_system_without_locks_is_noted_and_another_error_is_not(tmp_path, monkeypatch):
    found, notes = errno.ENOLCK, []

    def flock(*_):
        raise OSError(found, os.strerror(found))

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with lock.hold(tmp_path, note=notes.append):
        assert lock.holder(tmp_path) is None
    assert [str(tmp_path) in note for note in notes] == [True]
    found = errno.EIO
    with pytest.raises(UserError, match="--workdir"), held(tmp_path):
        pass


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    with holder(tmp_path) as other:
        other.send_signal(signal.SIGSTOP)  # it lives
        assert f"process {other.pid} on" in lock.holder(tmp_path)
        with pytest.raises(UserError) as caught, held(tmp_path):
            pass
        for words in (str(tmp_path), f"process {other.pid}", "--workdir"):
            assert words in str(caught.value)
    assert (tmp_path / lock.NAME).exists()
    assert lock.holder(tmp_path) is None
    with held(tmp_path):
        assert f"process {os.getpid()} on" in lock.holder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[" * 10**5, b'{"holder": "\\n", "token": "a"}'])
def test_what_a_lock_file_says_decides_nothing(tmp_path, content):
    (tmp_path / lock.NAME).write_bytes(content)
    assert lock.holder(tmp_path) is None
    with held(tmp_path):
        (tmp_path / lock.NAME).write_bytes(content)
        with pytest.raises(UserError, match="another process"), held(tmp_path):
            pass


def test_of_many_that_come_at_once_exactly_one_wins_although_others_look(tmp_path):
    """``flock`` is of an open file, so threads exclude each other as processes do."""
    together, ended = threading.Barrier(4), threading.Event()

    def attempt(_):
        together.wait()
        try:
            with held(tmp_path):
                together.wait()  # until the others were refused
                return True
        except UserError:
            together.wait()
            return False

    def look():
        while not ended.is_set():
            lock.holder(tmp_path)

    with ThreadPoolExecutor(5) as pool:
        pool.submit(look)
        try:
            for _ in range(20):
                assert sum(pool.map(attempt, range(4))) == 1
                assert not list(tmp_path.iterdir())
        finally:
            ended.set()


def test_where_there_are_no_locks_a_note_says_so(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", fails)
    said = []
    with lock.hold(tmp_path, note=said.append):
        assert f"process {os.getpid()} on" in (tmp_path / lock.NAME).read_text()
    assert len(said) == 1
    assert str(tmp_path) in said[0]


def test_a_directory_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run" / lock.NAME).mkdir(parents=True)
    for directory in (tmp_path / "file" / "run", tmp_path / "run"):
        with pytest.raises(UserError, match="--workdir"), held(directory):
            pass


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
    with holder(bucket.url) as process:
        if cached:
            process.send_signal(signal.SIGSTOP)  # it lives, without heartbeats
            with pytest.raises(UserError, match=f"process {process.pid} on"), lease(bucket):
                pass
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
