import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import decoded_reader
from largebatch.errors import DataError
from tests.data import stores
from tests.data.decoded_stores import contents, drawn, make, opened

FIRST = "train-{}-00000-of-00003.npy"


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "store")


def save(store, what, array):
    np.save(store / FIRST.format(what), array)


def shorten(path, by):
    os.truncate(path, path.stat().st_size - by)


def edit(change):
    return lambda store: stores.edit(store / "index.json", change)


DAMAGE = {
    "index is no JSON": lambda s: (s / "index.json").write_text("{"),
    "index is a list": lambda s: (s / "index.json").write_text("[1]"),
    "index lacks a key": edit(lambda index: index.pop("splits")),
    "index of another format": edit(lambda index: index.pop("format")),
    "index of another version": edit(lambda index: index.update(version=2)),
    "index of another size": edit(lambda index: index.update(size=47)),
    "index of other classes": edit(lambda index: index.update(classes=["a", "b"])),
    "images missing": lambda s: (s / FIRST.format("images")).unlink(),
    "sizes missing": lambda s: (s / FIRST.format("sizes")).unlink(),
    "images cut off": lambda s: shorten(s / FIRST.format("images"), 1),
    "labels cut off": lambda s: shorten(s / FIRST.format("labels"), 1),
    "labels empty": lambda s: os.truncate(s / FIRST.format("labels"), 0),
    "images of another format": lambda s: (s / FIRST.format("images")).write_bytes(b"x" * 200),
    "labels of another number": lambda s: save(s, "labels", np.zeros(4, np.int32)),
    "labels of another type": lambda s: save(s, "labels", np.zeros(5, np.int64)),
    "labels below 0": lambda s: save(s, "labels", np.full(5, -1, np.int32)),
    "sizes below 1": lambda s: save(s, "sizes", np.zeros((5, 2), np.int32)),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_incomplete_or_damaged_store_is_refused(store, case):
    opened(store)
    DAMAGE[case](store)
    assert str(store) in stores.complaint(opened, store)


def test_examples_and_classes_are_those_of_the_training_split(store):
    assert len(opened(store, "validation", examples=10, classes=3)) == 6
    for option, value in {"examples": 11, "classes": 2}.items():
        with pytest.raises(DataError, match=rf"data\.{option}: .*got {value}"):
            opened(store, "validation", **{option: value})


def test_a_file_that_shrinks_while_in_use_is_named(store):
    source = opened(store)
    path = store / FIRST.format("images")
    shorten(path, 1)
    ids = np.arange(5)
    with pytest.raises(DataError, match="train-images-00000"):
        source.read_stored(ids, **drawn(ids))


def test_a_file_that_goes_before_it_is_read_is_named(store):
    source = opened(store)
    (store / FIRST.format("images")).unlink()
    with pytest.raises(DataError, match="train-images-00000"):
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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors by /proc")
def test_few_files_are_open_and_none_in_the_end(store, monkeypatch):
    monkeypatch.setattr(decoded_reader, "_OPEN_FILES", 2)
    source = opened(store)
    assert stores.open_files(store) == 0  # until they are read
    for example, count in ((0, 1), (1, 1), (5, 2), (9, 2), (0, 2)):
        source.read(np.array([example]))
        assert stores.open_files(store) == count
    gc.disable()  # closed by counting references, not whenever cycles are collected
    try:
        del source
        assert stores.open_files(store) == 0
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
