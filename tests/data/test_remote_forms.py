"""Files in object storage are the same examples as on a disk, and faults give no other bytes."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from largebatch import object_store
from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    identity,
    open_dataset,
    ranges,
    train_microbatches,
)
from largebatch.data.record_cache import RecordCache
from largebatch.data.source import open_source
from largebatch.errors import ConfigError, UserError
from largebatch.object_store import Bucket
from tests.data import forms, stores
from tests.object_servers import SECRET, fast_of

FORMS = ("tfrecord", "tfds TFRecord", "webdataset", "folder")
EVERY = np.arange(forms.SPLITS["train"])


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("forms")
    return {name: forms.FORMS[name](root / name.replace(" ", "_")) for name in FORMS}


@pytest.fixture
def place(served, sets, tmp_path, monkeypatch):
    """Uploads a form; returns its specification there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "_RETRY_S", 0)

    def upload(form):
        scheme, _, local = sets[form].partition(":")
        url = f"{served[1]}/{form.replace(' ', '_')}/{Path(local).name}"
        bucket = Bucket(url)
        for path in Path(local).rglob("*"):
            if path.is_file():
                bucket.write(path.relative_to(local).as_posix(), path)
        return f"{scheme}:{url}"

    return upload


def cached(size=10**9):
    return SourceOptions(image_size=16, cache_bytes=size)


def batches(spec, options):
    source = open_dataset(spec, "train", options)
    made = train_microbatches(
        source,
        Order(seed=3, examples=len(source)),
        Augment(flip=True),
        start=100,
        stop=196,
        microbatch=32,
        rows=(0, 32),
        reading=Reading(threads=2),
    )
    return identity(source.source), [(batch.ids, batch.images, batch.labels) for batch in made]


def digest(records):
    images, labels = records.read(EVERY)
    return hashlib.sha256(b"".join(images) + labels.tobytes()).hexdigest()


def requests(gateway):
    """Number of requests since the last call."""
    count = len(gateway.requests)
    gateway.requests.clear()
    return count


@pytest.mark.parametrize("form", fast_of(FORMS, "tfrecord", "webdataset", "folder"))
def test_objects_give_the_examples_of_local_files(place, served, sets, tmp_path, form):
    spec = place(form)
    options = cached()
    for split in forms.SPLITS:
        records = open_source(spec, split, options)
        expected = [(i, label) for _, i, label in forms.photographs(split)]
        stores.check_source(records, expected)
        assert records.classes == forms.CLASSES
    requests(served[0])
    records.read(np.arange(len(expected)))
    assert requests(served[0]) == 0
    assert records.marks() == open_source(sets[form], split, options).marks()
    known, ours = batches(spec, options)
    own, theirs = batches(sets[form], options)
    assert known == own
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def data_requests(fault, every=3):
    """Fails each third request for data, and lets its repetition pass."""

    def choose(method, path, number):
        return fault if "train" in path and "list" not in path and number % every == 0 else ""

    return choose


@pytest.mark.parametrize("form", fast_of(["tfrecord", "folder"], "tfrecord"))
@pytest.mark.parametrize("fault", fast_of(["500", "503", "429", "cut", "short"], "503", "cut"))
def test_requests_that_fail_once_are_repeated(place, served, sets, monkeypatch, form, fault):
    monkeypatch.setattr(object_store, "_RETRY_S", 60)
    records = open_source(place(form), "train", SourceOptions())
    served[0].fault = data_requests(fault)
    assert digest(records) == digest(open_source(sets[form], "train", SourceOptions()))


@pytest.mark.parametrize("form", fast_of(["tfrecord", "folder"], "tfrecord"))
@pytest.mark.parametrize("fault", fast_of(["403", "404", "503", "short"], "403", "503"))
def test_requests_that_fail_always_end_in_one_line(place, served, form, fault):
    spec = place(form)
    records = open_source(spec, "train", SourceOptions())
    served[0].fault = lambda *_: fault
    for call in (records.read, lambda _: open_source(spec, "train", SourceOptions())):
        if call != records.read and fault == "404":
            continue  # lists nothing
        with pytest.raises(UserError) as caught:
            call(EVERY)
        message = str(caught.value)
        assert served[1] in message
        assert "\n" not in message
        assert SECRET not in message


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("webdataset", "pets-train-0000.tar"),
        ("tfrecord", "train.tfrecord-00000-of-00003"),
    ],
)
@pytest.mark.parametrize("change", fast_of(["deleted", "replaced"], "replaced"))
def test_an_object_that_changes_during_a_run_is_refused(place, tmp_path, form, name, change):
    spec = place(form)
    options = cached()
    records = open_source(spec, "train", options)
    before = records.read(EVERY[:10])[0]
    bucket = Bucket(spec.partition(":")[2])
    content = bytearray(bucket.read(name)[0])
    content[content.index(before[0][-100:])] ^= 1  # an image of the same size
    bucket.delete(name)
    if change == "replaced":
        bucket.write(name, bytes(content))
    assert records.read(EVERY[:10])[0] == before  # what was stored is of the version that was read
    for ids in (EVERY[10:11], EVERY):
        assert f"{spec.partition(':')[2]}/{name}" in stores.complaint(records.read, ids)
    if change == "replaced":
        again = open_source(spec, "train", options)
        assert again.read(EVERY[:1])[0] != before[:1]
        stored = {path.name for path in (tmp_path / "cache" / "largebatch" / "records").iterdir()}
        assert len({name.partition("-")[0] for name in stored}) == len(stored)


def test_what_is_missing_or_misnamed_is_refused(place, served):
    bucket = Bucket(place("tfrecord").partition(":")[2])
    bucket.delete("train.tfrecord-00001-of-00003")
    place("webdataset")
    url = served[1]
    for spec, word in (
        (f"tfrecord:{bucket.url}", "train.tfrecord-00001-of-00003"),
        (f"tfrecord:{url}/none", f"{url}/none"),
        (f"webdataset:{url}/webdataset/webdataset/pets-train-{{0000..0003}}.tar", "0003"),
        (f"webdataset:{url}/webdataset/webdataset/no*.tar", "no*.tar"),
        (f"tfrecord:{url.replace('//', '//user:word@', 1)}", "…@"),
    ):
        with pytest.raises(UserError) as caught:
            open_source(spec, "train", SourceOptions())
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)


def test_patterns_name_objects(place, sets):
    spec = place("webdataset")
    expected = digest(open_source(sets["webdataset"], "train", SourceOptions()))
    for pattern in ("*.tar", "pets-{train,validation}-{0000..0002}.tar", "pets-t*-000[0-2].tar"):
        assert digest(open_source(f"{spec}/{pattern}", "train", SourceOptions())) == expected


@pytest.mark.parametrize("form", ["tfds TFRecord"])
def test_a_prepared_set_is_found_by_name(served, sets, monkeypatch, tmp_path, form):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    local = Path(sets[form].partition(":")[2])
    bucket = Bucket(served[1])
    for path in local.iterdir():
        bucket.write(f"tfds/pets/1.0.0/{path.name}", path)
    options = [SourceOptions(data_dir=d) for d in (str(local.parent.parent), f"{served[1]}/tfds/")]
    here, there = (open_source("tfds:pets", "train", each) for each in options)
    assert (digest(here), here.marks()) == (digest(there), there.marks())
    for spec, data_dir in (("tfds:cats", "tfds"), ("tfds:pets:2.0.0", "tfds"), ("tfds:pets", "no")):
        there = SourceOptions(data_dir=f"{served[1]}/{data_dir}")
        assert served[1] in stores.complaint(open_source, spec, "train", there)


def test_forms_that_cannot_be_read_in_place_say_what_to_do(served):
    for spec, word in (("arrayrecord", "prepare_imagenet.py --from"), ("huggingface", "rclone")):
        bucket = Bucket(f"{served[1]}/{spec}")
        bucket.write("train.array_record-00000-of-00001", b"x")
        bucket.write("labels.txt", b"a\nb\n")
        assert word in stores.complaint(open_source, f"{spec}:{bucket.url}", "train")


def test_the_index_is_kept_until_an_object_changes(place, served, tmp_path):
    spec = place("tfrecord")
    requests(served[0])
    first = open_source(spec, "train", SourceOptions())
    assert 10 < requests(served[0]) < len(EVERY)  # the records are small: many in a window
    again = open_source(spec, "train", SourceOptions())
    assert requests(served[0]) < 4
    assert again.marks() == first.marks()
    bucket = Bucket(spec.partition(":")[2])
    (index,) = (tmp_path / "cache" / "largebatch").iterdir()
    bucket.write(index.name[index.name.index(".") :], index)
    index.unlink()
    requests(served[0])
    again = open_source(spec, "train", SourceOptions())  # with the index beside the objects
    assert requests(served[0]) < 5
    assert again.marks() == first.marks()
    name = "train.tfrecord-00001-of-00003"
    bucket.write(name, bucket.read("train.tfrecord-00000-of-00003")[0])
    changed = open_source(spec, "train", SourceOptions())
    assert changed.marks() != first.marks()
    ids = np.arange(55)
    images = changed.read(ids)[0]
    assert (changed.read(ids + 55)[0], changed.read(ids)[0]) == (images, images)


def test_neighbours_share_a_request_and_a_batch_is_read_at_once(place, served, monkeypatch):
    records = open_source(place("tfrecord"), "train", SourceOptions())
    requests(served[0])
    records.read(EVERY[:50])
    assert requests(served[0]) == 1
    records.read(np.array([7, 3, 90, 91, 3]))
    assert requests(served[0]) == 2  # 3 and 7 are near each other
    monkeypatch.setattr(ranges, "_NEAR", 0)
    waiting, most = [0], [0]

    def hold(method, path, number):
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        while len(served[0].requests) < 20:
            pass_on.wait(0.01)
        return ""

    pass_on = threading.Event()
    served[0].requests.clear()
    served[0].fault = hold
    records.read(EVERY[::5])  # returns only if 20 requests are under way together
    assert most[0] >= 20


ENDING = """
import sys
import numpy as np
from largebatch.data import ahead, open_source
from largebatch.data.prefetch import in_threads
source = open_source(sys.argv[1], "train")
print("open", flush=True)
sys.stdin.readline()

def poll(waited, arrived):
    sys.stdin.readline()
    sys.exit(75)

reads = in_threads(source.read, np.split(np.arange(0, 160, 20), 4), 2)  # as the feed reads
next(ahead(reads, len, 1, poll=poll, patience=0.1))
"""


@pytest.mark.multiprocess
def test_a_store_that_hangs_does_not_keep_a_process_from_ending(place, served):
    asked, answer = threading.Event(), threading.Event()

    def hang(method, path, number):
        asked.set()
        answer.wait()
        return ""

    program = [sys.executable, "-c", ENDING, place("tfrecord")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as ending:
        while ending.stdout.readline() != "open\n":
            assert ending.poll() is None
        served[0].fault = hang
        ending.stdin.write("\n")
        ending.stdin.flush()
        assert asked.wait(60)
        ending.stdin.close()
        try:
            assert ending.wait(40) == 75  # a request would be given up after 60 s
        finally:
            answer.set()
            ending.kill()


def fill(cache, count, size=10_000):
    for row in range(count):
        cache.put("a-1", row * 2 * size, bytes([row % 256]) * size)
    return [row for row in range(count) if cache.get("a-1", row * 2 * size, size) is not None]


def test_a_cache_keeps_the_first_records_up_to_its_limit(tmp_path):
    one = RecordCache(tmp_path, 10**6)
    kept = fill(one, 300)
    assert kept == list(range(len(kept)))
    assert 50 < len(kept) < 100
    assert one.used() <= 10**6
    other = RecordCache(tmp_path, 10**6)  # as another process has it
    assert fill(other, 300) == kept
    assert other.used() <= 10**6
    assert fill(RecordCache(tmp_path / "other", 10**8), 300) == list(range(300))


def test_the_datasets_of_a_process_share_the_limit(place, tmp_path):
    limit = 10 * 2**20
    options = cached(limit)
    spec = place("tfrecord")
    caches = [open_source(spec, split, options)._storage._cache for split in forms.SPLITS]
    for row in range(150):
        for number, cache in enumerate(caches):
            cache.put(f"{number}-1", row * 101_000, bytes(100_000))
    assert limit // 2 < caches[0].used() <= limit


def test_a_cache_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.R_OK)  # root may always
    with pytest.raises(ConfigError, match=r"data\.cache_gb"):
        RecordCache(tmp_path, 10**6)


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
    assert cache.get("b-1", 0, 10_000) is None
    cache.keep_only(["a-2", "b-1"])
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_refused_or_passed_by(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    spec = place("tfrecord")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(UserError) as caught:
            open_source(spec, "train", SourceOptions(cache_bytes=10**6))
    assert "data.cache_gb" in str(caught.value)
    records = open_source(spec, "train", cached())
    expected = digest(records)
    shutil.rmtree(tmp_path / "cache" / "largebatch" / "records")
    assert digest(records) == expected


def test_a_scan_keeps_nothing_in_the_cache(place, tmp_path):
    records = open_source(place("tfrecord"), "train", cached())
    kept = tmp_path / "cache" / "largebatch" / "records"
    assert not list(kept.iterdir())
    records.read(EVERY[:1])
    assert len(list(kept.iterdir())) == 1


def test_a_cache_that_was_deleted_is_created_by_the_next_opening(place, tmp_path):
    spec = place("tfrecord")
    open_source(spec, "train", cached())
    kept = tmp_path / "cache" / "largebatch" / "records"
    shutil.rmtree(kept)
    open_source(spec, "train", cached()).read(EVERY[:1])
    assert len(list(kept.iterdir())) == 1
