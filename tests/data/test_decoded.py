"""Decoded stores: written shards, the source that reads them, and damage."""

import gc
import hashlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

from largebatch.data import decoded_reader
from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.decoded import stored_boxes
from largebatch.data.decoded_store import write_shard
from largebatch.data.device_crops import crop_and_resize
from largebatch.data.images import resize
from largebatch.data.openers import open_source
from largebatch.data.sources import CroppingSource, StoredSource
from largebatch.errors import DataError
from tests.data import stores
from tests.data.decoded_stores import (
    CLASSES,
    OPTIONS,
    SHARDS,
    SIZE,
    contents,
    drawn,
    make,
    opened,
    write,
)


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "store")


def test_a_shard_is_three_numpy_files(tmp_path):
    facts = write(tmp_path, "train")
    images, labels, sizes = contents("train")
    assert facts[1].file == "train-images-00001-of-00003.npy"
    assert [shard.examples for shard in facts] == list(SHARDS["train"])
    for what, dtype, column in (
        ("images", np.uint8, images),
        ("labels", np.int32, labels),
        ("sizes", np.int32, sizes),
    ):
        found = [np.load(tmp_path / f"train-{what}-0000{i}-of-00003.npy") for i in range(3)]
        assert {array.dtype for array in found} == {np.dtype(dtype)}
        np.testing.assert_array_equal(np.concatenate(found), column)
    for shard in facts:
        assert shard.sha256 == hashlib.sha256((tmp_path / shard.file).read_bytes()).hexdigest()
    assert len(list(tmp_path.iterdir())) == 9


def test_a_shard_that_fails_leaves_what_was_there(tmp_path):
    write(tmp_path, "validation")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def images():
        yield np.zeros((SIZE, SIZE, 3), np.uint8)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_shard(tmp_path, "validation", 0, 1, images(), [0, 1], [(1, 1)] * 2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


SQUARE = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "sizes"),
    [
        ([], [], []),
        ([SQUARE], [0], [(1, 1), (1, 1)]),
        ([SQUARE], [0, 1], [(1, 1)] * 2),
        ([SQUARE] * 3, [0, 1], [(1, 1)] * 2),
        ([SQUARE, SQUARE[:3]], [0, 1], [(1, 1)] * 2),
        ([SQUARE.astype(float)], [0], [(1, 1)]),
    ],
)
def test_a_shard_that_does_not_fit_together_is_refused(tmp_path, images, labels, sizes):
    with pytest.raises(ValueError, match=r"image|label"):
        write_shard(tmp_path, "train", 0, 1, images, labels, sizes)
    assert not list(tmp_path.iterdir())


def test_it_is_a_source(store):
    source = open_source(f"decoded:{store}", "train", OPTIONS)
    assert isinstance(source, CroppingSource)
    assert isinstance(source, StoredSource)
    assert (len(source), source.classes, source.image_shape) == (10, CLASSES, (40, 40, 3))
    assert source.stored_size == SIZE
    assert opened(store, image_size=SIZE).image_shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("split", SHARDS)
def test_stored_images_and_labels_are_those_written(store, split):
    images, labels, sizes = contents(split)
    ids = np.array([5, 0, 5, 4, len(labels) - 1, 3])
    source = opened(store, split)
    for found in (source.read_stored(ids, **drawn(ids)), source.read_stored_centres(ids, (9, 9))):
        np.testing.assert_array_equal(found[0], images[ids])
        np.testing.assert_array_equal(found[1], labels[ids])
        assert [array.dtype for array in found] == [np.uint8, np.int32, np.int32]
    np.testing.assert_array_equal(source.sizes(ids), sizes[ids])


@pytest.mark.parametrize("resampling", ["linear", "antialias"])
def test_crops_and_centres_are_their_boxes_resized(store, resampling):
    images, labels, sizes = contents("train")
    ids = np.array([9, 2, 7, 2])
    source = opened(store, resampling=resampling, crop_area=(0.3, 0.5), crop_ratio=(0.5, 0.6))
    random = random_boxes(sizes[ids], **drawn(ids), ids=ids, area=(0.3, 0.5), ratio=(0.5, 0.6))
    for shape, boxes, found in (
        ((40, 40), random, source.read_crops(ids, **drawn(ids))),
        ((40, 40), centre_boxes(sizes[ids], (40, 40), 0.8), source.read(ids)),
        ((30, 50), centre_boxes(sizes[ids], (30, 50), 0.8), source.read_centres(ids, (30, 50))),
    ):
        expected = [
            resize(image[top : top + height, left : left + width], shape, resampling)
            for image, (top, left, height, width) in zip(
                images[ids], stored_boxes(boxes, sizes[ids], SIZE), strict=True
            )
        ]
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], labels[ids])


@pytest.mark.parametrize("resampling", ["linear", "antialias"])
def test_the_device_makes_the_same_crops_to_one_grey_level(store, resampling):
    source = opened(store, resampling=resampling)
    jitted = jax.jit(crop_and_resize, static_argnames=("shape", "resampling"))
    ids = np.arange(len(source))
    for shape, host, stored in (
        ((40, 40), source.read_crops(ids, **drawn(ids)), source.read_stored(ids, **drawn(ids))),
        ((40, 40), source.read(ids), source.read_stored_centres(ids, (40, 40))),
        ((64, 40), source.read_centres(ids, (64, 40)), source.read_stored_centres(ids, (64, 40))),
    ):
        images, labels, boxes = stored
        device = jitted(images, boxes, np.zeros(len(ids), bool), shape, resampling=resampling)
        np.testing.assert_array_equal(labels, host[1])
        # One for the host libraries' fixed-point arithmetic, see crop_and_resize.
        assert np.abs(np.asarray(device) - host[0]).max() <= 1


def test_boxes_fall_on_the_nearest_stored_pixels():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 700, (500, 2))
    sides = rng.integers(1, sizes + 1)
    corners = rng.integers(0, sizes - sides + 1)
    boxes = np.concatenate([corners, sides], axis=1)
    found = stored_boxes(boxes, sizes, SIZE)
    assert found.dtype == np.int64
    assert found[:, :2].min() >= 0
    assert found[:, 2:].min() == 1
    assert (found[:, :2] + found[:, 2:]).max() == SIZE
    for box, stored, size in zip(boxes.tolist(), found.tolist(), sizes.tolist(), strict=True):
        for axis in range(2):
            first, last = (
                Fraction(edge * SIZE, size[axis]) for edge in (box[axis], box[axis] + box[axis + 2])
            )
            begin, end = stored[axis], stored[axis] + stored[axis + 2]
            if abs(first - begin) > Fraction(1, 2) or abs(last - end) > Fraction(1, 2):
                assert end == begin + 1  # the box vanished between two edges
                assert last - first < 1
                assert begin - Fraction(1, 2) <= first <= end


FIRST = "train-{}-00000-of-00003.npy"


def save(store, what, array):
    np.save(store / FIRST.format(what), array)


def shorten(path, by):
    os.truncate(path, path.stat().st_size - by)


def edit(change):
    return lambda store: stores.edit(store / "index.json", change)


DAMAGE = {
    "index is not JSON": lambda s: (s / "index.json").write_text("{"),
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


def test_a_file_that_is_missing_when_it_is_read_is_named(store):
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
def test_few_files_are_open_and_all_are_closed(store, monkeypatch):
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


def test_several_threads_read_the_same_as_one(store, monkeypatch):
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
