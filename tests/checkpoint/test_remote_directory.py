"""A run directory in an object store: what is there after a kill at any request."""

import itertools
import os
import shutil
import threading
import time

import pytest

from largebatch import object_store
from largebatch.checkpoint.remote_directory import RemoteDirectory
from largebatch.checkpoint.staging import downloaded, staged
from largebatch.errors import CheckpointError, UserError
from largebatch.object_store import Bucket, StorageError

CHECKPOINT = ("manifest.json", "arrays/d/0")


def write_checkpoint(local, step):
    for name in CHECKPOINT:
        path = local / "checkpoints" / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of {step}")


def write_rows(local, step):
    with (local / "metrics.jsonl").open("a") as stream:
        stream.write(f'{{"step": {step}}}\n')


def train(directory, steps):
    """What a run does to its directory: a row and a checkpoint each step, two are kept."""
    for step in steps:
        write_rows(directory.local, step)
        write_checkpoint(directory.local, step)
        old = directory.local / "checkpoints" / str(step - 2)
        if old.exists():
            old.rename(old.with_name(f".{old.name}.deleting"))
        directory.push()


def content(local):
    paths = (path for path in local.rglob("*") if path.is_file())
    return {p.relative_to(local).as_posix(): p.read_bytes() for p in paths if ".del" not in str(p)}


@pytest.fixture
def remote(served, tmp_path):
    numbers = itertools.count()

    def opened():
        local = tmp_path / f"copy{next(numbers)}"
        local.mkdir()
        return RemoteDirectory(Bucket(served[1]), local)

    return opened


def test_a_pulled_directory_equals_the_pushed_one(remote):
    one, other = remote(), remote()
    train(one, [1, 2, 3])
    (one.local / "lock.json").write_text("mine")
    (one.local / "saved.json").write_text('{"step": 3}')
    (one.local / ".hidden").write_text("temporary")
    one.push()
    other.pull()
    expected = content(one.local)
    del expected["lock.json"], expected["saved.json"], expected[".hidden"]
    assert content(other.local) == expected
    newest = remote()
    newest.pull(newest_only=True)
    assert set(content(newest.local)) == {n for n in expected if not n.startswith("checkpoints/2")}
    newest.pull_checkpoint(2)
    assert content(newest.local) == expected


def test_checkpoints_that_are_not_pulled_are_known(remote):
    one, other = remote(), remote()
    train(one, [1, 2])
    (one.local / "checkpoints" / "2").rename(one.local / "checkpoints" / "2.corrupt")
    one.push()
    other.pull(checkpoints=False)
    assert sorted(os.listdir(other.local / "checkpoints")) == ["1", "2.corrupt"]
    assert list(content(other.local)) == ["metrics.jsonl"]


def test_a_lost_local_copy_deletes_nothing(remote):
    one = remote()
    train(one, [1, 2])
    names = one.bucket.objects()
    shutil.rmtree(one.local)
    one.push(last=True)
    assert one.bucket.objects() == names
    one.close()
    one.local.mkdir()
    write_rows(one.local, 3)
    one.push(last=True)
    assert one.bucket.objects() == names


def test_a_replaced_checkpoint_is_never_half_old(remote, served):
    """The checkpoint of an interrupted evaluation is saved again at the same step."""
    gateway, _ = served
    one = remote()
    train(one, [1])
    (one.local / "checkpoints" / "1" / "arrays" / "d" / "0").write_text("replaced")
    before = one.bucket.objects("checkpoints")
    one.push()
    assert one.bucket.objects("checkpoints") == before  # the only one stays until the end
    train(one, [2])
    began = len(gateway.requests)
    (one.local / "checkpoints" / "1" / "manifest.json").write_text("replaced, too")
    one.push()
    names = [f"{m} {p.rpartition('checkpoints')[2]}" for m, p in gateway.requests[began:]]
    names = [name.replace("%2F", "/").replace("%2E", ".") for name in names]
    assert names[0] in ("DELETE /1/manifest.json", "POST /bucket?delete")
    assert names[-1] == "PUT /1/manifest.json"
    other = remote()
    other.pull()
    assert content(other.local) == content(one.local)


def test_nothing_is_sent_twice(remote, served):
    directory = remote()
    train(directory, [1])
    before = len(served[0].requests)
    directory.push()
    assert len(served[0].requests) == before
    again = remote()
    again.pull()
    before = len(served[0].requests)
    again.push()
    assert len(served[0].requests) == before


def test_after_a_kill_at_any_request_the_newest_checkpoint_is_complete(remote, served, monkeypatch):
    gateway, _ = served
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    seen = set()
    for allowed in itertools.count():
        victim = remote()
        victim.bucket.delete(*victim.bucket.objects())
        began = len(gateway.requests)
        gateway.fault = lambda m, p, number, last=began + allowed: "503" if number >= last else ""
        try:
            train(victim, [1, 2, 3])
            done = True
        except StorageError:
            done = False
        gateway.fault = None
        found = remote()
        found.clear()
        found.pull()
        kept = content(found.local)
        steps = {int(name.split("/")[1]) for name in kept if name.startswith("checkpoints/")}
        for step in steps:
            for name in CHECKPOINT:
                assert kept[f"checkpoints/{step}/{name}"] == f"{name} of {step}".encode()
        if steps:
            assert f'"step": {max(steps)}' in kept["metrics.jsonl"].decode()
        remaining = {name for name in found.bucket.objects() if name.startswith("checkpoints/")}
        assert len(remaining) == len(CHECKPOINT) * len(steps)
        seen.add(max(steps, default=0))
        if done:
            break
    assert seen == {0, 1, 2, 3}


def test_an_earlier_run_is_archived_in_the_store(remote):
    assert remote().archive() is None
    for number in ("1", "2"):
        one = remote()
        train(one, [1])
        assert one.archive() == f"{one.bucket.url}/previous/{number}"
    other = remote()
    other.pull()
    assert content(other.local) == {}
    assert sorted(os.listdir(other.local / "previous")) == ["1", "2"]
    names = one.bucket.objects()
    assert f"previous/1/checkpoints/1/{CHECKPOINT[0]}" in names
    assert all(name.startswith("previous/") for name in names)


def test_objects_outside_of_the_directory_are_not_written(remote, tmp_path):
    one = remote()
    one.bucket.write("checkpoints/.1.partial/manifest.json", b"{}")
    one.bucket.write(".profile", b"")
    one.bucket.write("config.json", b"{}")
    other = remote()
    other.pull()
    assert content(other.local) == {"config.json": b"{}"}


def run(url, **options):
    printed = []
    calls = {"note": printed.append, "warn": printed.append}
    return staged(url, **{"trains": True, **calls, **options}), printed


def test_a_training_uploads_while_it_runs_and_at_its_end(served, monkeypatch):
    monkeypatch.setattr("largebatch.checkpoint.remote_directory._LOOK_S", 0.05)
    _, url = served
    bucket = Bucket(url)
    context, _ = run(url)
    with context as directory:
        with pytest.raises(UserError, match="in use"), run(url)[0]:
            pass
        assert directory.local.is_dir()
        write_rows(directory.local, 1)
        write_checkpoint(directory.local, 1)
        appeared = threading.Event()
        for _ in range(600):
            if "checkpoints/1/manifest.json" in bucket.objects():
                break
            appeared.wait(0.1)
        write_rows(directory.local, 2)
        (directory.local / "summary.json").write_text("{}")
        assert "summary.json" not in bucket.objects()
    assert not directory.local.exists()
    assert bucket.read("metrics.jsonl")[0] == b'{"step": 1}\n{"step": 2}\n'
    assert "lock.json" not in bucket.objects()


def test_an_evaluation_reads_beside_a_training_and_adds_its_file(served):
    _, url = served
    context, _ = run(url)
    with context as training:
        write_checkpoint(training.local, 1)
        training.push()
        with run(url, trains=False)[0] as evaluation:
            assert os.listdir(evaluation.local / "checkpoints") == ["1"]
            (evaluation.local / "evaluation.json").write_text("{}")
        assert Bucket(url).read("evaluation.json")[0] == b"{}"
    with run(url)[0] as again:
        assert (again.local / "evaluation.json").exists()


def test_what_cannot_be_uploaded_at_the_end_is_kept(served, monkeypatch, tmp_path):
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gateway, url = served
    context, _ = run(url)
    directory = context.__enter__()
    write_checkpoint(directory.local, 1)
    gateway.fault = lambda *_: "503"
    with pytest.raises(StorageError) as raised:
        context.__exit__(None, None, None)
    gateway.fault = None
    (kept,) = tmp_path.glob("largebatch-not-uploaded-*")
    assert str(kept) in str(raised.value)
    assert (kept / "checkpoints" / "1" / "manifest.json").exists()


def test_a_store_that_fails_during_training_is_reported_once(served, monkeypatch):
    monkeypatch.setattr(object_store, "_RETRY_S", 0)
    monkeypatch.setattr("largebatch.checkpoint.remote_directory._LOOK_S", 0.02)
    monkeypatch.setattr("largebatch.checkpoint.remote_directory.EVERY_S", 0.02)
    gateway, url = served
    context, printed = run(url)
    with context as directory:
        write_rows(directory.local, 1)
        before = len(gateway.requests)
        gateway.fault = lambda method, path, number: "503" if "metrics" in path else ""
        wait = threading.Event()
        while sum("metrics" in path for _, path in gateway.requests[before:]) < 5:
            wait.wait(0.05)
        gateway.fault = None
    assert len(printed) == 1
    assert Bucket(url).read("metrics.jsonl")[0] == b'{"step": 1}\n'


def test_a_new_run_archives_an_earlier_one_when_it_is_ready(served):
    _, url = served
    with run(url)[0] as first:
        write_rows(first.local, 1)
    with run(url, fresh=True)[0] as second:
        assert content(second.local) == {}
        write_rows(second.local, 2)
        second.push()
        assert Bucket(url).read("metrics.jsonl")[0] == b'{"step": 1}\n'
        assert second.archive() == f"{url}/previous/1"
    assert Bucket(url).read("previous/1/metrics.jsonl")[0] == b'{"step": 1}\n'
    assert Bucket(url).read("metrics.jsonl")[0] == b'{"step": 2}\n'


def test_a_run_and_its_checkpoint_are_downloaded(served, tmp_path):
    _, url = served
    with run(url)[0] as directory:
        (directory.local / "config.json").write_text("{}")
        write_checkpoint(directory.local, 1)
        write_checkpoint(directory.local, 2)
    with downloaded(url) as local:
        assert (local.name, os.listdir(local / "checkpoints" / "2/arrays")) == (
            url.rpartition("/")[2],
            ["d"],
        )
    with downloaded(f"{url}/checkpoints/1") as local:
        assert (local / "manifest.json").read_text() == "manifest.json of 1"
        assert (local.parent.parent / "config.json").read_text() == "{}"
    for absent in (f"{url}/checkpoints/3", f"{url}/none"):
        with pytest.raises(CheckpointError), downloaded(absent):
            pass


def test_a_dry_run_transfers_nothing(served):
    gateway, url = served
    with run(url, trains=False, transfers=False)[0] as directory:
        (directory.local / "summary.json").write_text("{}")
    assert not gateway.requests


def test_a_second_training_on_this_host_leaves_the_copy_of_the_first_alone(served):
    context, _ = run(served[1])
    with context as directory:
        write_checkpoint(directory.local, 1)
        with pytest.raises(UserError, match="in use"), run(served[1])[0]:
            pass
        assert (directory.local / "checkpoints" / "1").is_dir()


FOREIGN = (
    "a/metrics.jsonl",
    "b/checkpoints/8/manifest.json",
    "checkpoints/500/_CHECKPOINT_METADATA",
    "checkpoints/500/default/manifest.ocdbt",
    "checkpoints/600/arrays/d/0",
    "checkpoints/600/state/d/0",
    "checkpoints/last.ckpt",
    "checkpoints/best/arrays/d/0",
    "notes.txt",
    "previous.txt",
    "result_final.txt",
    "lock.json.backup",
)


@pytest.mark.parametrize("fresh", [False, True])
def test_objects_of_others_stay_where_they_are(served, remote, fresh):
    bucket = Bucket(served[1])
    for name in FOREIGN:
        bucket.write(name, b"theirs")
    for _ in range(2):
        with run(served[1], fresh=fresh)[0] as directory:
            if fresh:
                directory.archive()
            train(directory, [1, 2, 3])
            assert not (directory.local / "notes.txt").exists()
        assert {name: bucket.read(name)[0] for name in FOREIGN} == dict.fromkeys(FOREIGN, b"theirs")
    kept = {name for name in bucket.objects() if not name.startswith("previous/")} - {*FOREIGN}
    assert {name.split("/")[0] for name in kept} == {"metrics.jsonl", "checkpoints"}
    archived = [name for name in bucket.objects() if name.startswith("previous/")]
    assert bool(archived) == fresh
    assert all("3" in name or "2" in name or "metrics" in name for name in archived)


def test_an_interrupted_upload_is_still_deleted(remote):
    one = remote()
    train(one, [1])
    one.bucket.write("checkpoints/2/arrays/d/0", b"a part")
    remote().clear()
    assert not one.bucket.objects("checkpoints/2")
    assert one.bucket.objects("checkpoints/1")


def test_a_process_that_ends_does_not_wait_for_an_upload_that_hangs(remote):
    one = remote()
    one._pushing.acquire()  # the main thread waits for the store
    began = time.monotonic()
    with pytest.raises(StorageError, match="hangs"):
        one.push(last=True, patience_s=0.2)
    assert time.monotonic() - began < 5


def test_the_local_copy_has_no_name_that_others_can_guess(served, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = []
    for _ in range(2):
        with run(served[1])[0] as directory:
            places.append(directory.local)
            assert directory.local.stat().st_mode & 0o777 == 0o700
            # What a killed process left behind is removed; a link with such a name is not followed.
            left = directory.local.with_name(f"{directory.local.name[:-8]}leftover")
        left.mkdir()
        (left / "big").write_text("")
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        (tmp_path / "elsewhere" / "mine").write_text("")
        link = left.with_name(f"{left.name}link")
        if not link.is_symlink():
            link.symlink_to(tmp_path / "elsewhere")
    with run(served[1])[0]:
        assert not left.exists()
    assert places[0] != places[1]
    assert (tmp_path / "elsewhere" / "mine").exists()
