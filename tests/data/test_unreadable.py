"""Images that cannot be decoded: replaced in training, grey in evaluation, always reported."""

import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    Unreadable,
    evaluation_batches,
    evaluation_views,
)
from largebatch.data.dataset import Dataset
from largebatch.errors import DataError
from tests.data.feeds import assert_same, joined, training
from tests.data.test_dataset import EXAMPLES, Pictures

STOP, SIDE = 96, 24
GREY = [124, 116, 104]  # ImageNet's mean, rounded
# One alone, two neighbours, and the last, whose successor is the first; 9 is cut off: only boxes
# that reach below the cut are bad.
BAD = (2, 5, 6, 9, 12)
READING = Reading(threads=2, piece_bytes=SIDE * SIDE * 3 * 3)


class Corrupt(Pictures):
    """Images that are corrupt in different ways; counts the reads."""

    def __init__(self, bad=BAD):
        super().__init__(EXAMPLES)
        corrupt = {
            2: b"",
            5: b"<html>404 not found</html>",
            6: b"\0" * 700,
            9: self.contents[9][: len(self.contents[9]) * 7 // 10],
            12: self.contents[12][:300],
        }
        for index in bad:
            self.contents[index] = corrupt.get(index, b"no image")
        self.reads = Counter()

    def read(self, ids):
        self.reads.update(ids.tolist())
        return super().read(ids)

    def where(self, example):
        return f"/set/{example}.JPEG"


def photos(bad=BAD, **options):
    return Dataset(Corrupt(bad), SourceOptions(image_size=SIDE, **options))


def account(share=0.5, split="train"):
    return Unreadable(split, EXAMPLES, share)


def feed(source, unreadable, *, microbatch=8, reading=READING, **options):
    augment, options = Augment(flip=True), options | {"unreadable": unreadable}
    return training(source, augment, stop=STOP, microbatch=microbatch, reading=reading, **options)


def one_by_one(source):
    """The rule for one position at a time: the next example replaces one that fails."""
    order, augment = Order(3, EXAMPLES), Augment(flip=True)
    found, passed = [], []
    for position in range(STOP):
        ids, epochs = (f(np.array([position])) for f in (order.ids, order.epochs))
        while True:
            images, labels, corrupt = source.read_crops(ids, seed=3, epochs=epochs)
            if not len(corrupt):
                break
            passed.append(int(ids[0]))
            ids = (ids + 1) % EXAMPLES
        found.append((ids, augment(images, seed=3, epochs=epochs, ids=ids), labels))
    return [np.concatenate(field) for field in zip(*found, strict=True)], passed


@pytest.fixture(scope="module")
def expected():
    return one_by_one(photos())


@pytest.mark.parametrize(("hosts", "microbatch", "start"), [(1, 8, 0), (3, 24, 0), (1, 1, 9)])
def test_the_next_decodable_example_replaces_one(expected, hosts, microbatch, start):
    share = microbatch // hosts
    accounts = [account() for _ in range(hosts)]
    shares = [
        list(feed(photos(), unreadable, start=start, microbatch=microbatch, rows=(r, r + share)))
        for r, unreadable in zip(range(0, microbatch, share), accounts, strict=True)
    ]
    ids, _, labels = wanted = [field[start:] for field in expected[0]]
    assert_same(joined(part for step in zip(*shares, strict=True) for part in step), wanted)
    assert not set(ids) & {2, 5, 6, 12}
    np.testing.assert_array_equal(labels, ids % 3)
    found = [example for unreadable in accounts for example, *_ in unreadable.found]
    assert set(found) == set(expected[1]) == set(BAD)


def test_any_threads_report_the_same(expected):
    reports = []
    for reading in (READING, Reading(threads=0)):
        unreadable, heard = account(), []
        unreadable.connect(lambda *words, heard=heard: heard.append(words))
        assert_same(joined(feed(photos(), unreadable, reading=reading)), expected[0])
        reports.append(heard)
    assert reports[0] == reports[1]  # in the order of the batches
    # Once each, although most were read several times.
    assert sorted(name for name, _ in reports[0]) == sorted(f"/set/{i}.JPEG" for i in BAD)
    assert len(expected[1]) > 25


def test_with_none_allowed_the_first_one_stops_the_run():
    with pytest.raises(DataError, match=r"/set/5\.JPEG") as caught:
        list(feed(photos(bad=(5,)), None))
    value = float(str(caught.value).rpartition("--config.data.max_unreadable=")[2])
    list(feed(photos(bad=(5,)), account(value)))  # the value that it names works


@pytest.mark.parametrize(("share", "limit"), [(0.0, 0), (0.3, 3)])
def test_a_dataset_of_corrupt_images_only_ends(share, limit):
    source, unreadable = photos(bad=range(EXAMPLES)), account(share)
    assert unreadable.limit == limit
    with pytest.raises(DataError, match=f"{limit + 1} of 13 examples"):
        list(feed(source, unreadable))
    if not limit:  # nothing replaces them; the first is read again to explain it
        assert sum(source.source.reads.values()) <= STOP + 1


def test_the_limit_is_a_share_of_the_split():
    for examples, share, limit in (
        (100, 0.29, 29),  # 28.999999999999996 in floating point
        (1_281_167, 0.001, 1281),
        (10_000, 0.0001, 3),  # 3 are allowed in any case,
        (29, 0.001, 2),  # but no more than a tenth
        (999, 0.0, 0),
    ):
        assert Unreadable("train", examples, share).limit == limit


def test_evaluation_counts_a_grey_image_with_its_label():
    source, accounts = photos(evaluation_crop=1.0), [account(split="validation") for _ in range(2)]
    hosts = [
        evaluation_batches(source, batch=8, rows=rows, reading=READING, unreadable=unreadable)
        for rows, unreadable in zip(((0, 4), (4, 8)), accounts, strict=True)
    ]
    parts = [part for step in zip(*hosts, strict=True) for part in step]
    images, labels, mask = (
        np.concatenate([getattr(part, field) for part in parts])
        for field in ("images", "labels", "mask")
    )
    assert mask.sum() == EXAMPLES
    np.testing.assert_array_equal(labels[:EXAMPLES], np.arange(EXAMPLES) % 3)
    good = [i for i in range(EXAMPLES) if i not in BAD]
    whole = photos(bad=(), evaluation_crop=1.0).read_centres(np.array(good))[0]
    np.testing.assert_array_equal(images[good], whole)
    assert (images[list(BAD)] == GREY).all()
    assert not images[EXAMPLES:].any()
    assert sorted(found.example for each in accounts for found in each.found) == list(BAD)
    with pytest.raises(DataError, match=r"^validation: .*data\.max_unreadable"):
        list(evaluation_batches(source, batch=8, rows=(0, 8), reading=READING))


def test_rectangular_evaluation_counts_them():
    """Images without a header are squares; those that are cut off have their own shape."""
    source, unreadable = photos(evaluation_crop=1.0), account(split="validation")
    views = evaluation_views(source, READING, 64, rectangular=True)
    clean = evaluation_views(photos(bad=()), READING, 64, rectangular=True)
    shapes = {i: view.shape for view in views for i in view.ids.tolist()}
    wanted = {i: view.shape for view in clean for i in view.ids.tolist()}
    assert shapes == wanted | dict.fromkeys((2, 5, 6), (64, 64))
    batches = evaluation_batches(
        source, batch=4, rows=(0, 4), reading=READING, views=views, unreadable=unreadable
    )
    assert sum(batch.mask.sum() for batch in batches) == EXAMPLES
    assert sorted(found.example for found in unreadable.found) == list(BAD)


def test_a_corrupt_image_keeps_no_memory():
    source, out = photos(), np.empty((EXAMPLES, SIDE, SIDE, 3), np.uint8)
    gone = weakref.ref(out)
    gc.disable()
    try:
        drawn = {"seed": 0, "epochs": np.zeros(EXAMPLES, np.int64)}
        images, _, rows = source.read_crops(np.arange(EXAMPLES), **drawn, out=out)
        assert images is out
        assert len(rows) >= 4
        del images, out
        assert gone() is None
    finally:
        gc.enable()


def test_threads_share_one_count():
    unreadable, explained, reports = Unreadable("train", 1000, 0.5), Counter(), Counter()

    def explain(example):
        explained[example] += 1
        return str(example), "corrupt"

    def add(seed):
        draw = np.random.default_rng(seed)
        for _ in range(20):
            unreadable.add(draw.integers(0, 60, 10).tolist(), explain)

    unreadable.add([1000], explain)
    unreadable.connect(lambda name, reason: reports.update([name]))
    assert reports == {"1000": 1}  # found before
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(8)))
    assert set(explained.values()) == set(reports.values()) == {1}
    assert sorted(map(int, reports)) == [*range(60), 1000]
    unreadable.check(range(30, 499))
    with pytest.raises(DataError, match="501"):
        unreadable.check(range(30, 500))
