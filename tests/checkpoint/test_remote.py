"""A run directory in an object store: what is there after a kill at any request."""

import contextlib
import inspect
import itertools
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from largebatch import object_store
from largebatch.checkpoint.checkpoints import Checkpoints, path_of, steps_in
from largebatch.checkpoint.file import Progress
from largebatch.checkpoint.place import BucketPlace, downloaded, opened
from largebatch.checkpoint.run_directory import held, note_saved, prepare
from largebatch.errors import CheckpointError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.object_store import Bucket, StorageError
from tests.checkpoint.test_checkpoints import LIKE, PLAN, same, tree

ROW = b'{"step": %d}\n'


@contextlib.contextmanager
def run(url, **options):
    calls = {"note": lambda _: None, "warn": lambda _: None}
    with opened(url) as place, held(place, **{"trains": True, "began": 0.0, **calls, **options}):
        yield place


def log(place, step):
    with (place.logs / "metrics.jsonl").open("ab") as stream:
        stream.write(ROW % step)


def train(place, steps, keep=1):
    """What a run does to its directory: a row and a checkpoint each step."""
    checkpoints = Checkpoints(
        place, keep=keep, warn=print, saved=lambda step: note_saved(place, step)
    )
    try:
        for step in steps:
            log(place, step)
            checkpoints.save(tree(step), Progress(step, 24 * step), PLAN)
            checkpoints.wait()
    finally:
        checkpoints.close()


def rows(url):
    """The rows that the next attempt sees."""
    with run(url, trains=False) as place:
        return logged(place)


def logged(place):
    path = place.logs / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def log_until(place, step):
    """Drop the rows after a step, as a run does when it resumes."""
    (place.logs / "metrics.jsonl").write_bytes(rows_of(range(1, step + 1)))


def rows_of(steps):
    return b"".join(ROW % step for step in steps)


def test_the_next_attempt_has_all_logs_and_checkpoints_and_others_keep_theirs(served):
    _, url = served
    Bucket(url).write("notes.txt", b"theirs")
    Bucket(url).write("checkpoints/last.ckpt", b"theirs")
    with run(url) as place:
        assert prepare(place, archive=False) is None
        train(place, [1, 2, 3])
        (place.logs / "summary.json").write_text("{}")
        (place.logs / ".hidden").write_text("temporary")
        (place.logs / "report").mkdir()
        (place.logs / "report" / "page.html").write_text("page")
        assert any(".part-" in name for name in place.bucket.objects())
    assert not place.logs.exists()
    assert sorted(place.bucket.objects()) == [
        "checkpoints/3.safetensors",
        "checkpoints/last.ckpt",
        "metrics.jsonl",
        "notes.txt",
        "report/page.html",
        "saved.json",
        "summary.json",
    ]
    with run(url) as again:
        assert sorted(os.listdir(again.logs)) == ["metrics.jsonl", "saved.json", "summary.json"]
        assert prepare(again, archive=False) is None
        train(again, [4])
    assert rows(url) == rows_of(range(1, 5))


class Killed(BaseException):
    """The process ends here."""


class Victim:
    """A store in memory; a process is killed at its n-th request, before or after its effect."""

    def __init__(self, store, at, late):
        self.store, self.left, self.late = store, at, late

    def __getattr__(self, name):
        def request(*arguments, **options):
            self.left -= 1
            if self.left < 0 or (self.left == 0 and not self.late):
                raise Killed
            answer, last = getattr(self.store, name)(*arguments, **options), self.left == 0
            if inspect.isawaitable(answer):
                return awaited(answer, last)
            if last:
                raise Killed
            return answer

        async def awaited(answer, last):
            found = await answer
            if last:
                raise Killed
            return found

        return request


@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.slow), True])
def test_after_a_kill_at_any_request_the_newest_checkpoint_is_complete(late, tmp_path):
    def opened(store):
        bucket = Bucket("s3://bucket/run")
        bucket._store = store
        place = BucketPlace(bucket, Path(tempfile.mkdtemp(dir=tmp_path)))
        place.fetch_logs()
        return place

    def attempt(place):
        """Continue from the newest checkpoint to step 3."""
        done = max(steps_in(place), default=0)
        log_until(place, done)
        train(place, range(done + 1, 4))
        place.keep_logs(last=True)

    seen = set()
    for at in itertools.count(1):
        store, killed = MemoryStore(), False
        place = opened(store)
        place.bucket._store = Victim(store, at, late)
        try:
            attempt(place)
        except Killed:
            killed = True
        place = opened(store)
        done = max(steps_in(place), default=0)
        for step in steps_in(place):
            found = Checkpoints(place, keep=1, warn=print).read(step, PLAN, LIKE)
            assert same(found.state, tree(step))
        note = place.logs / "saved.json"
        if note.exists():  # the newest checkpoint goes only when there is another one
            assert done >= json.loads(note.read_text())["step"]
        assert logged(place).startswith(rows_of(range(1, done + 1)))
        assert rows_of(range(1, 4)).startswith(logged(place))
        seen.add(done)
        attempt(place)
        assert logged(opened(store)) == rows_of(range(1, 4))
        assert steps_in(place)[0] == 3
        if not killed:
            break
    assert seen == {0, 1, 2, 3}


def test_what_is_uploaded_grows_with_the_run(served, monkeypatch):
    sent, write = [], Bucket.write

    def counted(self, path, content):
        sent.append(len(content))
        write(self, path, content)

    with run(served[1]) as place:
        monkeypatch.setattr(Bucket, "write", counted)
        for step in range(1, 51):
            log(place, step)
            place.keep_logs()
    assert sum(sent) == 2 * len(rows_of(range(1, 51)))  # in parts, and the file at the end


def test_parts_that_a_killed_process_left_are_not_read_twice(served):
    with run(served[1]) as place:
        for step in (1, 2, 3):
            log(place, step)
            place.keep_logs()
        parts = {name: place.bucket.read(name)[0] for name in place.bucket.objects("")}
    whole = place.bucket.read("metrics.jsonl")[0]
    for name, content in parts.items():
        if ".part-" in name:
            place.bucket.write(name, content)
    place.bucket.write("metrics.jsonl", whole)
    assert rows(served[1]) == whole == rows_of((1, 2, 3))


def test_an_evaluation_reads_beside_a_training_and_adds_its_file(served):
    _, url = served
    with run(url) as training:
        train(training, [1])
        with run(url, trains=False) as evaluation:
            train(training, [2])
            assert (evaluation.logs / "metrics.jsonl").read_bytes() == rows_of([1])
            (evaluation.logs / "evaluation.json").write_text("{}")
        assert rows(url) == rows_of([1, 2])
        assert Bucket(url).read("evaluation.json")[0] == b"{}"
    with run(url) as again:
        assert (again.logs / "evaluation.json").exists()
        assert (again.logs / "metrics.jsonl").read_bytes() == rows_of([1, 2])


def test_a_lost_local_copy_deletes_nothing(served):
    with run(served[1]) as place:
        train(place, [1, 2])
        names = {n for n in place.bucket.objects() if n != "lock.json"}
        shutil.rmtree(place.logs)
        place.keep_logs(last=True)
        assert names <= {*place.bucket.objects()}
    assert names == {*place.bucket.objects()}


def test_what_cannot_be_uploaded_at_the_end_is_kept(served, monkeypatch, tmp_path):
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gateway, url = served
    attempt = run(url)
    place = attempt.__enter__()
    log(place, 1)
    gateway.fault = lambda *_: "503"
    with pytest.raises(StorageError) as raised:
        attempt.__exit__(None, None, None)
    gateway.fault = None
    (kept,) = tmp_path.glob("largebatch-not-uploaded-*")
    assert str(kept) in str(raised.value)
    assert (kept / "metrics.jsonl").read_bytes() == ROW % 1
    assert kept.stat().st_mode & 0o777 == 0o700


def test_a_copy_that_the_watchdog_cannot_upload_is_kept(served, monkeypatch):
    """It ends the process without the end of the body."""
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    gateway, url = served
    actions, watchdog = {}, Watchdog()
    monkeypatch.setattr(watchdog, "finally_do", actions.__setitem__)
    with run(url, watchdog=watchdog) as place:
        log(place, 1)
        gateway.fault = lambda *_: "503"
        with pytest.raises(StorageError):
            actions["logs"]("failed", "hang")
        gateway.fault = None
        actions["lock"]("failed", "hang")
        assert "lock.json" not in place.bucket.objects()
        assert (place.logs / "metrics.jsonl").read_bytes() == ROW % 1


def test_a_run_that_lost_its_lock_uploads_nothing(served, monkeypatch):
    _, url = served
    with run(url) as place:
        log(place, 1)
        monkeypatch.setattr(IDLE, "lost", "process 7 took the lock")
    assert "metrics.jsonl" not in Bucket(url).objects()


def test_a_process_that_ends_does_not_wait_for_an_upload_that_hangs(served):
    with run(served[1]) as place:
        place._sending.acquire()  # the main thread waits for the store
        began = time.monotonic()
        with pytest.raises(StorageError, match="hangs"):
            place.keep_logs(last=True, patience_s=0.2)
        assert time.monotonic() - began < 5
        place._sending.release()


def test_a_run_is_downloaded(served):
    _, url = served
    with run(url) as place:
        (place.logs / "config.json").write_text("{}")
        train(place, [1, 2], keep=2)
    with downloaded(url) as found:
        assert found.logs.name == url.rpartition("/")[2]
        assert sorted(os.listdir(found.logs)) == ["config.json", "metrics.jsonl", "saved.json"]
        assert steps_in(found) == [2, 1]
        assert len(found.read(path_of(2), 8)) == 8
    with pytest.raises(CheckpointError), downloaded(f"{url}/none"):
        pass


def test_without_a_kept_row_a_checkpoint_is_not_written(served, monkeypatch):
    """The newest checkpoint always has its rows."""
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    gateway, url = served
    with run(url) as place:
        gateway.fault = lambda method, path, _: "503" if "metrics" in path else ""
        with pytest.raises(CheckpointError):
            train(place, [1])
        gateway.fault = None
        assert steps_in(place) == []


def test_a_row_is_valid_json_after_a_kill_in_a_line(served):
    with run(served[1]) as place:
        log(place, 1)
        with (place.logs / "metrics.jsonl").open("ab") as stream:
            stream.write(b'{"step"')
            stream.flush()
            place.keep_logs()
            stream.write(b": 2}\n")
        place.keep_logs()
        with run(served[1], trains=False) as reader:
            lines = logged(reader).splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
