import gc
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import decoded_reader
from largebatch.data.decoded import open_decoded
from largebatch.data.sources import SourceOptions
from largebatch.errors import ConfigError, DataError
from tests.data.decoded_stores import SHARDS, contents, drawn, make, opened

FIRST = "train-{}-00000-of-00003.npy"


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "store")


def edit(store, change):
    path = store / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def save(store, what, array):
    np.save(store / FIRST.format(what), array)


def shorten(path, by):
    os.truncate(path, path.stat().st_size - by)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda s: (s / "index.json").unlink(),
            "index.json is absent",
        ),
        (
            lambda s: (s / "index.json").write_text("{"),
            "index.json is not the index",
        ),
        (lambda s: (s / "index.json").write_text("[1]"), "is not the index of a decoded store"),
        (lambda s: edit(s, lambda i: i.pop("splits")), "is not the index of a decoded store"),
        (lambda s: edit(s, lambda i: i.pop("format")), "is not the index of a decoded store"),
        (lambda s: edit(s, lambda i: i.update(version=2)), "got .*'version': 2}"),
        (
            lambda s: edit(s, lambda i: i.update(size=47)),
            r"48, 3\), expected uint8 \(5, 47",
        ),
        (lambda s: edit(s, lambda i: i["splits"].pop("train")), "has no train .* only validation"),
        (
            lambda s: edit(s, lambda i: i.update(classes=["a", "b"])),
            "are 0 to 2, expected 0 to 1",
        ),
        (lambda s: (s / FIRST.format("images")).unlink(), "images.* cannot be read .No such file"),
        (lambda s: (s / FIRST.format("sizes")).unlink(), "sizes.* cannot be read .No such file"),
        (lambda s: shorten(s / FIRST.format("images"), 1), "images.* is not a complete array"),
        (lambda s: shorten(s / FIRST.format("labels"), 1), "labels.* is not a complete array"),
        (lambda s: os.truncate(s / FIRST.format("labels"), 0), "labels.* is not a complete array"),
        (lambda s: (s / FIRST.format("images")).write_bytes(b"x" * 200), "is not a complete array"),
        (lambda s: save(s, "labels", np.zeros(4, np.int32)), r"\(4,\), expected int32 \(5,\)"),
        (lambda s: save(s, "labels", np.zeros(5, np.int64)), r"int64 \(5,\), expected int32"),
        (lambda s: save(s, "labels", np.full(5, -1, np.int32)), "labels are -1 to"),
        (lambda s: save(s, "sizes", np.zeros((5, 2), np.int32)), "a train size is below 1"),
    ],
)
def test_an_incomplete_or_damaged_store_is_refused(store, spoil, message):
    opened(store)
    spoil(store)
    with pytest.raises(DataError, match=message) as caught:
        opened(store)
    assert str(store) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        ("decoded", {}, DataError, "'decoded' has no directory"),
        ("decoded:", {}, DataError, "has no directory"),
        ("decoded:{}", {"examples": 11}, DataError, "data.examples: expected 0 or 10 .*got 11"),
        ("decoded:{}", {"classes": 2}, DataError, "data.classes: expected 0 or 3 .*got 2"),
        ("decoded:{}", {"crop_area": (0, 1)}, ConfigError, "data.crop_area"),
        ("decoded:{}", {"resampling": "cubic"}, ConfigError, "data.resampling: .* got 'cubic'"),
    ],
)
def test_options_that_do_not_fit_the_store_are_refused(store, spec, options, error, message):
    # The options are those of the training split.
    assert len(opened(store, "validation", examples=10, classes=3)) == 6
    with pytest.raises(error, match=message):
        open_decoded(spec.format(store), "validation", SourceOptions(**options))


def test_a_file_that_shrinks_while_in_use_is_named(store):
    source = opened(store)
    path = store / FIRST.format("images")
    shorten(path, 1)
    ids = np.arange(5)
    with pytest.raises(DataError, match=r"train-images-00000.* has become shorter while in use"):
        source.read_stored(ids, **drawn(ids))


def test_a_file_that_goes_before_it_is_read_is_named(store):
    source = opened(store)
    (store / FIRST.format("images")).unlink()
    with pytest.raises(DataError, match=r"train-images-00000.* cannot be read \(No such file"):
        source.read(np.arange(5))


def test_a_pickled_copy_reads_the_same(store):
    source = opened(store, crop_area=(0.2, 0.3))
    ids = np.arange(len(source))
    source.read(ids)  # has files open now
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.name, copy.describe()) == (source.name, source.describe())
    for a, b in zip(
        source.read_crops(ids, **drawn(ids)), copy.read_crops(ids, **drawn(ids)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def descriptors(store):
    """Files of the store that this process has open."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(os.path.realpath(link).startswith(f"{store}/") for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors by /proc")
def test_few_files_are_open_and_none_in_the_end(store, monkeypatch):
    monkeypatch.setattr(decoded_reader, "_OPEN_FILES", 2)
    source = opened(store)
    assert descriptors(store) == 0  # until they are read
    for example, count in ((0, 1), (1, 1), (5, 2), (9, 2), (0, 2)):
        source.read(np.array([example]))
        assert descriptors(store) == count
    gc.disable()  # closed by counting references, not whenever cycles are collected
    try:
        del source
        assert descriptors(store) == 0
    finally:
        gc.enable()


def test_threads_read_what_one_reads(store, monkeypatch):
    monkeypatch.setattr(decoded_reader, "_OPEN_FILES", 1)  # every thread closes others' files
    source = opened(store)
    images, labels, _ = contents("train")
    rng = np.random.default_rng(0)
    tasks = rng.integers(0, len(source), (200, 7))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda ids: source.read_stored(ids, **drawn(ids)), tasks))
    for ids, (found, of_them, _) in zip(tasks, results, strict=True):
        np.testing.assert_array_equal(found, images[ids])
        np.testing.assert_array_equal(of_them, labels[ids])


def test_each_split_is_its_own(store):
    for split, counts in SHARDS.items():
        assert len(opened(store, split)) == sum(counts)
