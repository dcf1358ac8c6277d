"""Files in object storage are the same examples as on a disk, and faults give no other bytes."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from largebatch import object_store
from largebatch.data import SourceOptions, identity, open_dataset, ranges
from largebatch.data.record_cache import RecordCache, open_cache
from largebatch.data.source import open_source
from largebatch.errors import ConfigError, UserError
from largebatch.object_store import Bucket
from tests.data import feeds, forms, stores
from tests.object_servers import SECRET

EVERY = np.arange(forms.SPLITS["train"])
IMAGES = [image for _, image, _ in forms.photographs("train")]
SHARD = "train.tfrecord-00001-of-00003"
CACHED = SourceOptions(image_size=16, cache_bytes=10**9)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("forms")
    return {
        name: Path(forms.FORMS[name](root / name).partition(":")[2])
        for name in ("tfrecord", "tfds TFRecord", "folder")
    }


@pytest.fixture
def place(served, sets, tmp_path, monkeypatch):
    """Uploads a form; returns its specification there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "_RETRY_S", 0)

    def upload(form, below="set"):
        bucket = Bucket(f"{served[1]}/{below}")
        for path in sets[form].rglob("*"):
            if path.is_file():
                bucket.write(path.relative_to(sets[form]).as_posix(), path)
        return f"{form}:{bucket.url}"

    return upload


@pytest.fixture
def kept(tmp_path):
    """The directory of the cache."""
    return tmp_path / "cache" / "largebatch" / "records"


def requests(gateway):
    """Number of requests since the last call."""
    count = len(gateway.requests)
    gateway.requests.clear()
    return count


@pytest.mark.parametrize("form", ["tfrecord", "folder"])
def test_objects_give_the_examples_of_local_files(place, served, sets, kept, form):
    spec, local = place(form), f"{form}:{sets[form]}"
    for split in forms.SPLITS:
        records = open_source(spec, split, CACHED)
        assert len(list(kept.iterdir())) == 0 or split == "validation"  # a scan keeps nothing
        expected = [(i, label) for _, i, label in forms.photographs(split)]
        stores.check_source(records, expected)
        assert records.classes == forms.CLASSES
        assert identity(records) == identity(open_source(local, split))
    requests(served[0])
    records.read(np.arange(len(expected)))
    assert requests(served[0]) == 0
    ours, theirs = (feeds.microbatches(open_dataset(s, "train", CACHED)) for s in (spec, local))
    feeds.assert_same(ours, theirs)


@pytest.mark.parametrize("fault", ["503", "cut", "short"])
def test_requests_that_fail_once_are_repeated(place, served, monkeypatch, fault):
    monkeypatch.setattr(object_store, "_RETRY_S", 60)
    records = open_source(place("tfrecord"), "train")

    def every_third(method, path, number):
        return fault if "train" in path and "list" not in path and number % 3 == 0 else ""

    served[0].fault = every_third
    assert records.read(EVERY)[0] == IMAGES


@pytest.mark.parametrize("fault", ["403", "503", "short"])
def test_requests_that_fail_always_end_in_one_line(place, served, fault):
    spec = place("tfrecord")
    records = open_source(spec, "train")
    served[0].fault = lambda *_: fault
    for call in (records.read, lambda _: open_source(spec, "train")):
        with pytest.raises(UserError) as caught:
            call(EVERY)
        assert served[1] in str(caught.value)
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)


def test_an_object_that_changes_during_a_run_is_refused(place, kept):
    spec, name = place("tfrecord"), "train.tfrecord-00000-of-00003"
    records = open_source(spec, "train", CACHED)
    before = records.read(EVERY[:10])[0]
    bucket = Bucket(spec.partition(":")[2])
    content = bytearray(bucket.read(name)[0])
    content[content.index(before[0][-100:])] ^= 1  # an image of the same size
    for change in (bucket.delete, lambda name: bucket.write(name, bytes(content))):
        change(name)
        assert records.read(EVERY[:10])[0] == before  # which was stored
        for ids in (EVERY[10:11], EVERY):
            assert f"{bucket.url}/{name}" in stores.complaint(records.read, ids)
    again = open_source(spec, "train", CACHED)
    assert again.read(EVERY[:1])[0] != before[:1]
    objects = [path.name.partition("-")[0] for path in kept.iterdir()]
    assert len(set(objects)) == len(objects)


def test_what_is_missing_or_cannot_be_read_in_place_is_refused(place, served):
    bucket = Bucket(place("tfrecord").partition(":")[2])
    bucket.delete(SHARD)
    Bucket(f"{served[1]}/records").write("train.array_record", b"x")
    Bucket(f"{served[1]}/records").write("labels.txt", b"a\nb\n")
    for spec, word in (
        (f"tfrecord:{bucket.url}", SHARD),
        (f"tfrecord:{served[1]}/none", f"{served[1]}/none"),
        (f"webdataset:{bucket.url}/no*.tar", "no*.tar"),
        (f"arrayrecord:{served[1]}/records", "prepare_imagenet.py --from"),
        (f"huggingface:{bucket.url}", "rclone"),
    ):
        assert word in stores.complaint(open_source, spec, "train")


def test_a_prepared_set_is_found_by_name(place, served, sets):
    place("tfds TFRecord", "tfds/pets/1.0.0")
    local = str(sets["tfds TFRecord"].parent.parent)
    options = [SourceOptions(data_dir=d) for d in (local, f"{served[1]}/tfds/")]
    here, there = (open_source("tfds:pets", "train", each) for each in options)
    assert here.read(EVERY)[0] == there.read(EVERY)[0] == IMAGES
    assert identity(here) == identity(there)
    for spec, data_dir in (("tfds:cats", "tfds"), ("tfds:pets:2.0.0", "tfds"), ("tfds:pets", "no")):
        there = SourceOptions(data_dir=f"{served[1]}/{data_dir}")
        assert served[1] in stores.complaint(open_source, spec, "train", there)


def test_the_index_is_kept_until_an_object_changes(place, served, tmp_path):
    spec = place("tfrecord")
    requests(served[0])
    first = open_source(spec, "train")
    assert 10 < requests(served[0]) < len(EVERY)  # the records are small: many in a window
    again = open_source(spec, "train")
    assert requests(served[0]) < 4
    bucket = Bucket(spec.partition(":")[2])
    (index,) = (tmp_path / "cache" / "largebatch").iterdir()
    bucket.write(index.name[index.name.index(".") :], index)
    index.unlink()
    requests(served[0])
    beside = open_source(spec, "train")  # with the index beside the objects
    assert requests(served[0]) < 5
    assert identity(first) == identity(again) == identity(beside)
    bucket.write(SHARD, bucket.read("train.tfrecord-00000-of-00003")[0])
    changed = open_source(spec, "train")
    assert changed.read(EVERY[:110])[0] == 2 * IMAGES[:55]


def test_neighbours_share_a_request_and_a_batch_is_read_at_once(place, served, monkeypatch):
    records = open_source(place("tfrecord"), "train")
    requests(served[0])
    records.read(EVERY[:50])
    assert requests(served[0]) == 1
    records.read(np.array([7, 3, 90, 91, 3]))
    assert requests(served[0]) == 2  # 3 and 7 are near each other
    monkeypatch.setattr(ranges, "_NEAR", 0)

    def hold(method, path, number):
        while len(served[0].requests) < 20:
            pass_on.wait(0.01)
        return ""

    pass_on = threading.Event()
    served[0].requests.clear()
    served[0].fault = hold
    records.read(EVERY[::5])  # returns only if 20 requests are under way together


# ---- the cache


def fill(cache, count, size=10_000):
    for row in range(count):
        cache.put("a-1", row * 2 * size, bytes([row % 256]) * size)
    return [row for row in range(count) if cache.get("a-1", row * 2 * size, size) is not None]


def test_a_cache_keeps_the_first_records_up_to_its_limit(tmp_path, monkeypatch):
    one = RecordCache(tmp_path, 10**6)
    kept = fill(one, 300)
    assert kept == list(range(len(kept)))
    assert 50 < len(kept) < 100
    assert one.used() <= 10**6
    assert fill(RecordCache(tmp_path, 10**6), 300) == kept  # as another process has it
    assert one.used() <= 10**6
    assert fill(RecordCache(tmp_path / "other", 10**8), 300) == list(range(300))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert open_cache(10**6) is open_cache(10**6)  # two datasets share the limit


def test_torn_and_foreign_entries_are_not_used(tmp_path):
    cache = RecordCache(tmp_path, 10**8)
    fill(cache, 3)
    (file,) = tmp_path.iterdir()
    intact = file.read_bytes()
    middle = 20_000 + 12 + 5_000  # within the second record
    for changed in (
        intact[:middle],
        intact[:middle] + bytes(len(intact) - middle),
        intact[:middle] + b"\xff" + intact[middle + 1 :],
    ):
        file.write_bytes(changed)
        assert cache.get("a-1", 0, 10_000) == bytes(10_000)
        assert cache.get("a-1", 20_000, 10_000) is None
        cache.put("a-1", 20_000, b"\1" * 10_000)
        assert cache.get("a-1", 20_000, 10_000) == b"\1" * 10_000
    for wrong in ((12, 9_988), (10_000, 10_000), (20_000, 9_999), (10**9, 10)):
        assert cache.get("a-1", *wrong) is None
    cache.keep_only(["a-2", "b-1"])
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_used_is_refused_or_passed_by(place, kept, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data\.cache_gb"):
        RecordCache(tmp_path / "file" / "records", 10**6)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: not mode & os.R_OK)  # root may always
        with pytest.raises(ConfigError, match=r"data\.cache_gb"):
            RecordCache(tmp_path, 10**6)
    spec = place("tfrecord")
    records = open_source(spec, "train", CACHED)
    shutil.rmtree(kept)
    assert records.read(EVERY)[0] == IMAGES
    open_source(spec, "train", CACHED).read(EVERY[:1])
    assert len(list(kept.iterdir())) == 1
