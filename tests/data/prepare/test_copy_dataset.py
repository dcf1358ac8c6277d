"""Copies of datasets between object stores and disks: kills, faults, damage and resumption."""

import hashlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from largebatch import object_store
from largebatch.data.openers import open_records
from largebatch.data.prepare import copy_dataset as copy_module
from largebatch.data.prepare import copy_ends, copy_store, etags
from largebatch.data.prepare.copy_dataset import copy_dataset
from largebatch.data.prepare.metadata import MANIFEST, Manifest, Shard, work_of
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import working
from largebatch.data.sources import SourceOptions
from largebatch.data.unfinished import MARKER, WORK, check_finished
from largebatch.errors import ConfigError, DataError
from largebatch.object_store import Bucket, StorageError
from scripts import prepare_imagenet
from tests.data import forms
from tests.object_servers import fast_of

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(ROOT / "scripts" / "prepare_imagenet.py")
FILES = {
    "dataset_info.json": b"{}",
    "empty": b"",
    "train/b/large": os.urandom(3 * 2**20 + 5),
    **{f"train/a/{number}": os.urandom(100 + number) for number in range(10)},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several parts of files that a test copies quickly."""
    monkeypatch.setattr(copy_ends, "PART", 2**20)


def write(folder, files=FILES):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def content(folder):
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in found.items() if not name.startswith(".")}


def upload(url, files=FILES):
    bucket = Bucket(url)
    for name, data in files.items():
        bucket.write(name, data)
    return bucket


def downloads(gateway, before=0):
    """Names of the files that were requested."""
    paths = [path for method, path in gateway.requests[before:] if method == "GET"]
    names = {unquote(path).rpartition("/")[2] for path in paths if "?" not in path}
    return names - {MARKER}


def copy(source, target, **options):
    said = []
    copy_dataset(str(source), str(target), report=said.append, **options)
    return said


def test_all_directions_give_equal_files(served, tmp_path):
    gateway, url = served
    first = write(tmp_path / "first")
    assert f"{len(FILES)} by SHA-256" in copy(first, tmp_path / "second")[-1]
    assert f"{len(FILES)} by the MD5" in copy(tmp_path / "second", f"{url}/a")[-1]
    assert f"{len(FILES)} by the MD5" in copy(f"{url}/a", f"{url}/b")[-1]
    assert f"{len(FILES)} by the MD5" in copy(f"{url}/b", tmp_path / "third")[-1]
    assert content(tmp_path / "third") == FILES
    assert not work_of(tmp_path / "third").exists()
    writes = len([m for m, _ in gateway.requests if m != "GET"])
    for source, target in (("first", f"{url}/a"), (f"{url}/a", f"{url}/b"), (f"{url}/b", "third")):
        ends = [end if "://" in end else tmp_path / end for end in (source, target)]
        assert f"{len(FILES)} of them kept" in copy(*ends)[-1]
    assert len([m for m, _ in gateway.requests if m != "GET"]) == writes


def test_hidden_files_and_objects_in_place_of_folders_are_left_out(served, tmp_path):
    gateway, url = served
    upload(url, FILES | {".profile": b"x", "train": b"", "train/a": b"", "a/.git/config": b"x"})
    for folder in ("none/", "train/c/"):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.moto, timeout=60)
        connection.request("PUT", quote(f"/{url.partition('://')[2]}/{folder}"))
        assert connection.getresponse().status == 200
        connection.close()
    copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == FILES


@pytest.mark.multiprocess
def test_a_killed_copy_continues(served, tmp_path):
    gateway, url = served
    upload(url)
    out = tmp_path / "out"
    held, release = threading.Event(), threading.Event()

    def fault(method, path, number):
        if path.endswith("large"):
            held.set()
            release.wait(60)
        return ""

    gateway.fault = fault
    command = [sys.executable, SCRIPT, "--copy", url, str(out)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    assert held.wait(60)
    journal = out / ".copied.jsonl"
    while journal.read_text().count('"name"') < 11:  # all but the large one and the last
        assert run.poll() is None
        held.clear()
        held.wait(0.02)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    release.set()
    gateway.fault = None
    assert content(out) == {}  # half a set never looks like one
    with journal.open("a") as stream:
        stream.write('{"name": "torn')
    before = len(gateway.requests)
    copy(url, out)
    assert content(out) == FILES
    assert downloads(gateway, before) == {"large", "dataset_info.json"}


@pytest.mark.parametrize("fault", fast_of(["500", "503", "429", "cut", "short"], "500", "short"))
def test_faults_are_repeated(served, tmp_path, fault):
    gateway, url = served
    upload(url)
    seen = set()

    def failing(method, path, number):
        first = path not in seen
        seen.add(path)
        return fault if first and method == "GET" and "?" not in path else ""

    gateway.fault = failing
    copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == FILES


def test_a_store_that_stays_down_ends_the_copy(served, tmp_path, monkeypatch):
    monkeypatch.setattr(copy_module, "_RETRY_S", 1)
    gateway, url = served
    upload(url)
    gateway.fault = lambda method, path, number: "503" if path.endswith("5") else ""
    with pytest.raises(StorageError):
        copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == {}
    gateway.fault = None
    copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == FILES


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_damaged_download_is_repeated(served, tmp_path, with_manifest):
    gateway, url = served
    files = recorded(FILES) if with_manifest else FILES
    upload(url, files)
    seen = set()

    def damaging(method, path, number):
        first = path not in seen
        seen.add(path)
        return "damaged" if first and "train" in path and "?" not in path else ""

    gateway.fault = damaging
    assert ("by SHA-256" in copy(url, tmp_path / "out")[-1]) == with_manifest
    assert content(tmp_path / "out") == files


def recorded(files, wrong=""):
    """Add the manifest that the preparation of a set writes."""
    facts = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    if wrong:
        facts[wrong] = (len(files[wrong]), "0" * 64)
    info = {"dataset_info.json": facts.pop("dataset_info.json")}
    shard = Shard("train", 0, 1, 1, "ends", facts)
    folder = Path(os.environ["PYTEST_TMP"])
    Manifest(Store(), False, {}, info, (shard,)).write(folder)
    return files | {MANIFEST: (folder / MANIFEST).read_bytes()}


@pytest.fixture(autouse=True)
def _manifests(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path_factory.mktemp("manifest")))


def test_a_file_unlike_the_manifest_is_refused(served, tmp_path):
    _, url = served
    files = recorded(FILES, wrong="train/a/3")
    upload(url, files)
    with pytest.raises(DataError, match="train/a/3"):
        copy(url, tmp_path / "out")
    with pytest.raises(DataError, match="train/a/3"):
        copy(write(tmp_path / "local", files), f"{url}-2")
    assert MANIFEST not in Bucket(f"{url}-2").objects()


def test_etags_that_are_no_md5_are_recognised(served, tmp_path, monkeypatch):
    """Those of a store that encrypts: of the form of an MD5, and equal for equal writes."""
    _, url = served
    upload(url)
    genuine = etags.md5
    monkeypatch.setattr(etags, "md5", lambda path: (path, genuine(path)[1][::-1]))
    assert f"{len(FILES)} by size" in copy(url, tmp_path / "out")[-1]
    assert f"{len(FILES)} by size" in copy(tmp_path / "out", f"{url}-2")[-1]
    assert content(tmp_path / "out") == FILES


@pytest.mark.parametrize("part", [5, 8, 16])
def test_etags_of_uploads_in_parts(tmp_path, part):
    data = os.urandom(17 * 2**20)
    (tmp_path / "file").write_bytes(data)
    pieces = [data[i : i + part * 2**20] for i in range(0, len(data), part * 2**20)]
    whole = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in pieces)).hexdigest()
    assert etags.is_of(f'"{whole}-{len(pieces)}"', tmp_path / "file") is True
    assert etags.is_of(f'"{whole}-17"', tmp_path / "file") is None
    assert etags.is_of('"0x8DB5"', tmp_path / "file") is None
    (tmp_path / "file").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert etags.is_of(f'"{whole}-{len(pieces)}"', tmp_path / "file") is False


def test_a_damaged_file_is_copied_again(served, tmp_path):
    _, url = served
    upload(url)
    out = tmp_path / "out"
    copy(url, out)
    changed, hidden, touched = (out / f"train/a/{number}" for number in (1, 2, 3))
    changed.write_bytes(bytes(changed.stat().st_size))
    status = hidden.stat()
    hidden.write_bytes(bytes(status.st_size))
    os.utime(hidden, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.utime(touched)
    (out / "train/a/4").unlink()
    assert f"{len(FILES) - 2} of them kept" in copy(url, out)[-1]
    assert {n for n, data in content(out).items() if data != FILES[n]} == {"train/a/2"}
    assert prepare_imagenet.main(["--copy", url, str(out), "--check", "full"]) == 0
    assert content(out) == FILES


def test_a_new_version_is_copied_and_a_missing_file_is_refused(served, tmp_path):
    _, url = served
    bucket = upload(url)
    out = tmp_path / "out"
    copy(url, out)
    bucket.write("train/a/5", b"n" * 105)
    assert f"{len(FILES) - 1} of them kept" in copy(url, out)[-1]
    assert content(out) == FILES | {"train/a/5": b"n" * 105}
    bucket.delete("train/a/6")
    with pytest.raises(DataError, match="train/a/6"):
        copy(url, out)


@pytest.mark.parametrize("change", ["rewritten", "added", "deleted"])
def test_a_source_that_changes_is_refused(served, tmp_path, change):
    gateway, url = served
    bucket = upload(url)
    changed = threading.Lock()

    def fault(method, path, number):
        if method == "GET" and path.endswith("9") and changed.acquire(blocking=False):
            if change == "deleted":
                bucket.delete("train/a/9")
            else:
                bucket.write("train/a/9" if change == "rewritten" else "train/c", b"new")
        return ""

    gateway.fault = fault
    with pytest.raises(DataError, match=r"train/(a/9|c)"):
        copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == {}


def test_two_copies_into_one_target(served, tmp_path):
    _, url = served
    upload(url)
    out = tmp_path / "out"
    with working(out), pytest.raises(DataError, match="another process"):
        copy(url, out)
    copy(url, out)
    assert content(out) == FILES
    second = upload(f"{url}-2", FILES | {"train/a/1": b"1" * 101})
    with pytest.raises(DataError, match="holds a copy of"):
        copy(second.url, out)
    third = Bucket(f"{url}-3")

    class Other(copy_store.StoreFolder):
        def finish(self, wanted):
            third.write("train/a/1", b"1" * 101)
            super().finish(wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_store, "StoreFolder", Other)
        with pytest.raises(DataError, match="train/a/1"):
            copy(url, third.url)


def test_targets_and_sources_that_are_refused(served, tmp_path, monkeypatch):
    _, url = served
    upload(url)
    with pytest.raises(DataError, match="not an empty directory"):
        copy(url, write(tmp_path / "other", {"x": b""}))
    with pytest.raises(DataError, match="holds no files"):
        copy(f"{url}-none", tmp_path / "out")
    with pytest.raises(DataError, match="nowhere"):
        copy(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match="overlap"):
        copy(url, f"{url}/train")
    upload(f"{url}-2", {"stale": b""})
    with pytest.raises(DataError, match="stale"):
        copy(url, f"{url}-2")
    (tmp_path / "begun" / "set" / ".prepare").mkdir(parents=True)
    with pytest.raises(DataError, match="unfinished"):
        copy(tmp_path / "begun", tmp_path / "out")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**20}))
    with pytest.raises(DataError, match="are free"):
        copy(url, tmp_path / "out")
    assert '"name"' not in (tmp_path / "out" / ".copied.jsonl").read_text()


def test_a_failed_copy_into_a_store_is_no_dataset(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(copy_module, "_RETRY_S", 1)
    gateway, url = served
    forms.webdataset(tmp_path / "set")
    spec, options = f"webdataset:{url}/a/b", SourceOptions(classes=4)
    failing = sorted(path.name for path in (tmp_path / "set").glob("*train*"))[-1]
    gateway.fault = lambda method, path, number: (
        "503" if method == "PUT" and failing in unquote(path) else ""
    )
    with pytest.raises(StorageError):
        copy(tmp_path / "set", f"{url}/a")
    with pytest.raises(StorageError):
        copy(tmp_path / "set", f"{url}/a/b")
    for place in (spec, f"webdataset:{url}/a/b/*train*.tar", f"webdataset:{url}/a"):
        with pytest.raises(DataError, match="unfinished"):
            open_records(place, "train", options)
    with pytest.raises(DataError, match="unfinished"):
        copy(f"{url}/a/b", tmp_path / "out")
    gateway.fault = None
    copy(tmp_path / "set", f"{url}/a/b")
    with pytest.raises(DataError, match="unfinished"):  # the folder above
        open_records(spec, "train", options)
    Bucket(url).delete(f"a/{MARKER}")
    local = open_records(f"webdataset:{tmp_path / 'set'}", "train", options)
    assert len(open_records(spec, "train", options)) == len(local)


def test_files_of_other_sources_in_a_store_are_not_replaced(served, tmp_path):
    _, url = served
    first = write(tmp_path / "first")
    other = write(tmp_path / "other", FILES | {"train/a/5": b"n" * 105})
    for target in (f"{url}/copied", upload(f"{url}/uploaded").url):
        copy(first, target)
        before = Bucket(target).objects()
        with pytest.raises(DataError, match="train/a/5"):
            copy(other, target)
        assert Bucket(target).objects() == before
        assert f"{len(FILES)} of them kept" in copy(write(tmp_path / "equal"), target)[-1]
    write(first, {"train/a/5": b"n" * 105})
    assert f"{len(FILES) - 1} of them kept" in copy(first, f"{url}/copied")[-1]
    assert Bucket(f"{url}/copied").read("train/a/5")[0] == b"n" * 105


@pytest.mark.parametrize("remote", [True, False])
def test_copies_without_an_md5_are_kept(served, tmp_path, monkeypatch, remote):
    """Those of Azure, and of uploads in parts of other sizes than the source's."""
    gateway, url = served
    monkeypatch.setattr(etags, "_HASH", re.compile("never"))
    source = upload(url).url if remote else write(tmp_path / "first")
    monkeypatch.setattr(copy_module, "_RETRY_S", 1)
    gateway.fault = lambda method, path, number: (
        "503" if method == "PUT" and unquote(path).endswith("dataset_info.json") else ""
    )
    with pytest.raises(StorageError):
        copy(source, f"{url}-2")
    gateway.fault = None
    assert f"{len(FILES) - 1} of them kept" in copy(source, f"{url}-2")[-1]
    assert f"{len(FILES)} of them kept" in copy(source, f"{url}-2")[-1]
    Bucket(f"{url}-2").write("train/a/5", b"n" * 105)
    assert f"{len(FILES) - 1} of them kept" in copy(source, f"{url}-2")[-1]
    assert Bucket(f"{url}-2").read("train/a/5")[0] == FILES["train/a/5"]


def test_half_a_set_is_not_opened(tmp_path, monkeypatch):
    forms.webdataset(tmp_path / "set")
    spec, options = f"webdataset:{tmp_path / 'out'}", SourceOptions(classes=4)
    genuine, moved = os.replace, []

    def replace(source, target):
        if f"{WORK}/copied" in str(source):
            moved.append(target)
            if len(moved) > 3:
                raise KeyboardInterrupt
        genuine(source, target)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(KeyboardInterrupt):
        copy(tmp_path / "set", tmp_path / "out")
    monkeypatch.setattr("os.replace", genuine)
    assert content(tmp_path / "out")
    with pytest.raises(DataError, match="unfinished"):
        open_records(spec, "train", options)
    copy(tmp_path / "set", tmp_path / "out")
    local = open_records(f"webdataset:{tmp_path / 'set'}", "train", options)
    assert len(open_records(spec, "train", options)) == len(local)
    (tmp_path / WORK).mkdir()
    check_finished(str(tmp_path / "out"))
    (tmp_path / WORK / "plan.json").touch()
    with pytest.raises(DataError, match="unfinished"):
        check_finished(str(tmp_path / "out" / "*.tar"))


@pytest.mark.parametrize("first", ["a", "z"])
def test_damage_that_repeats_is_no_encryption(served, tmp_path, first, monkeypatch):
    """A file that differs from its ETag in both downloads, where other ETags are an MD5."""
    monkeypatch.setattr(copy_module, "_FILES", 1)  # either before or after the others
    gateway, url = served
    upload(url, FILES | {f"{first}/bad": b"x" * 100})
    gateway.fault = lambda method, path, number: "damaged" if path.endswith("bad") else ""
    with pytest.raises(DataError, match=f"{first}/bad"):
        copy(url, tmp_path / "out")
    gateway.fault = None
    copy(url, tmp_path / "out")
    assert content(tmp_path / "out") == FILES | {f"{first}/bad": b"x" * 100}


def test_an_object_in_place_of_a_folder_is_refused(served, tmp_path):
    _, url = served
    upload(url, {"train": b"content", "train/x": b"x"})
    with pytest.raises(DataError, match="train"):
        copy(url, tmp_path / "out")


def test_an_error_ends_the_downloads_in_progress(served, tmp_path, monkeypatch):
    monkeypatch.setattr(copy_ends, "PART", 2**16)
    gateway, url = served
    upload(url, {"large": bytes(2**23), "lost": b"x"})
    opened, parts = [], []
    genuine = copy_ends.Objects.__init__

    def opening(self, bucket):
        genuine(self, bucket)
        opened.append(self)

    def fault(method, path, number):
        if path.endswith("lost"):
            return "404"
        if path.endswith("large"):
            parts.append(number)
            opened[0].ended.wait(60)
        return ""

    monkeypatch.setattr(copy_ends.Objects, "__init__", opening)
    gateway.fault = fault
    with pytest.raises(DataError, match="lost"):
        copy(url, tmp_path / "out")
    assert len(parts) <= 2 * copy_ends._REQUESTS < 2**23 // 2**16


def test_uploads_are_bounded_and_repeated(served, tmp_path, monkeypatch):
    """A slow line carries few bytes within the limit of time of a request."""
    monkeypatch.setattr(copy_module, "_REQUEST_S", 1)
    monkeypatch.setattr(copy_module, "_RETRY_S", 30)
    gateway, url = served
    files = {f"train/{number:02}": bytes([number]) * (2**20 + 1) for number in range(20)}
    files["train/parts"] = bytes(2 * object_store.PART + 1)
    waiting, most, of_file, hung, lock = [], [], [], [], threading.Lock()

    def fault(method, path, number):
        name = path.partition("?")[0]
        if method != "PUT" or "train" not in name:
            return ""
        with lock:
            waiting.append(name)
            most.append(len(waiting))
            of_file.append(waiting.count(name))
            first = not hung and name.endswith("00") and hung.append(name) is None
        time.sleep(0.2)
        with lock:
            waiting.remove(name)
        return "hang" if first else ""

    gateway.fault = fault
    copy(write(tmp_path / "set", files), url)
    assert hung
    assert 1 < max(most) <= 8
    assert max(of_file) == 1
    found = {name: entry.size for name, entry in Bucket(url).objects("train").items()}
    assert found == {name: len(data) for name, data in files.items()}


@pytest.mark.parametrize(
    "options", [["--out", "x"], ["--check", "ends"], ["--md5"], ["--shards", "2"], ["--to", "x"]]
)
def test_other_flags_are_refused(tmp_path, capsys, options):
    assert prepare_imagenet.main(["--copy", "a", "b", *options]) == 2
    assert options[0] in capsys.readouterr().err
