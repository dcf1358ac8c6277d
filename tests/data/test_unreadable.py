"""Images that cannot be decoded: replaced in training, grey in evaluation, always reported."""

import functools
import gc
import io
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    Unreadable,
    as_far_as_possible,
    evaluation_batches,
    open_source,
    train_microbatches,
)
from largebatch.data.photos import Photos
from largebatch.data.unreadable import FallibleSource, IncompleteReadError
from largebatch.data.views import rectangular_views
from largebatch.errors import DataError
from tests.data import stores
from tests.data.feeds import assert_same, joined

EXAMPLES, STOP, SIDE = 13, 96, 24
GREY = [124, 116, 104]  # ImageNet's mean, rounded
# One alone, two neighbours, and the last, whose successor is the first; 9 is cut off: only boxes
# that reach below the cut are bad.
BAD = (2, 5, 6, 9, 12)
READING = Reading(threads=2, piece_bytes=SIDE * SIDE * 3 * 3)
APART = Reading(threads=1, processes=2, piece_bytes=SIDE * SIDE * 3 * 3)


class Pictures:
    """Records of small images, some of them corrupt in different ways."""

    name = "images"
    classes = ("a", "b", "c")

    def __init__(self, bad=BAD):
        draw = np.random.default_rng(5)
        self.contents = []
        for index in range(EXAMPLES):
            pixels = draw.integers(0, 256, (*draw.integers(30, 90, 2), 3), np.uint8)
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG" if index % 4 == 3 else "JPEG", quality=60)
            self.contents.append(stream.getvalue())
        spoilt = {
            2: b"",
            5: b"<html>404 not found</html>",
            6: b"\0" * 700,
            9: self.contents[9][: len(self.contents[9]) * 9 // 10],
            12: self.contents[12][:300],
        }
        for index in bad:
            self.contents[index] = spoilt.get(index, b"no image")
        self.reads = Counter()

    def __len__(self):
        return EXAMPLES

    def read(self, ids):
        self.reads.update(ids.tolist())
        return [self.contents[i] for i in ids], (ids % 3).astype(np.int32)

    def where(self, example):
        return f"/set/{example}.JPEG"

    def describe(self):
        return "images"


def photos(bad=BAD, **options):
    return Photos(Pictures(bad), SourceOptions(image_size=SIDE, **options))


def account(share=0.5, split="train"):
    return Unreadable(split, EXAMPLES, share)


def feed(source, unreadable, *, start=0, microbatch=8, rows=None, reading=READING, **options):
    return train_microbatches(
        source,
        Order(3, EXAMPLES),
        Augment(flip=True),
        start=start,
        stop=STOP,
        microbatch=microbatch,
        rows=rows or (0, microbatch),
        reading=reading,
        unreadable=unreadable,
        **options,
    )


def one_by_one(source):
    """The rule for one position at a time: the next example replaces one that fails."""
    order, augment = Order(3, EXAMPLES), Augment(flip=True)
    found, passed = [], []
    for position in range(STOP):
        ids, epochs = (f(np.array([position])) for f in (order.ids, order.epochs))
        while True:
            try:
                images, labels = source.read_crops(ids, seed=3, epochs=epochs)
                break
            except IncompleteReadError:
                passed.append(int(ids[0]))
                ids = (ids + 1) % EXAMPLES
        found.append((ids, augment(images, seed=3, epochs=epochs, ids=ids), labels))
    return [np.concatenate(field) for field in zip(*found, strict=True)], passed


@pytest.fixture(scope="module")
def expected():
    return one_by_one(photos())


@pytest.mark.parametrize(("hosts", "microbatch"), [(1, 1), (1, 8), (2, 8), (4, 16), (3, 24)])
def test_the_next_decodable_example_replaces_one_with_any_hosts(expected, hosts, microbatch):
    share = microbatch // hosts
    accounts = [account() for _ in range(hosts)]
    shares = [
        list(feed(photos(), unreadable, microbatch=microbatch, rows=(r, r + share)))
        for r, unreadable in zip(range(0, microbatch, share), accounts, strict=True)
    ]
    assert_same(joined(part for step in zip(*shares, strict=True) for part in step), expected[0])
    ids, _, labels = expected[0]
    assert not set(ids) & {2, 5, 6, 12}
    np.testing.assert_array_equal(labels, ids % 3)
    met = [example for unreadable in accounts for example in unreadable.ids]
    assert set(met) == set(expected[1]) == set(BAD)
    assert all(len(set(unreadable.ids)) == unreadable.count for unreadable in accounts)


def test_a_replacement_has_the_crop_of_its_own_id():
    source, order = photos(bad=(2,)), Order(3, EXAMPLES)
    (part,) = feed(source, account(), microbatch=STOP)
    asked = order.ids(np.arange(EXAMPLES))
    own, instead = np.flatnonzero(asked == 3)[0], np.flatnonzero(asked == 2)[0]
    assert part.ids[instead] == part.ids[own] == 3
    np.testing.assert_array_equal(part.images[instead], part.images[own])


@pytest.mark.parametrize("start", range(1, EXAMPLES + 1, 3))
def test_a_resume_at_any_position_gives_the_same(expected, start):
    parts = feed(photos(), account(), start=start, microbatch=1)
    assert_same(joined(parts), [field[start:] for field in expected[0]])


def test_worker_processes_report_the_same(expected):
    reports = []
    for reading in (READING, APART):
        unreadable, heard = account(), []
        unreadable.connect(lambda *words, heard=heard: heard.append(words))
        assert_same(joined(feed(photos(), unreadable, reading=reading)), expected[0])
        reports.append(heard)
    assert reports[0] == reports[1]  # in the order of the batches
    assert dict(reports[0]) == {
        "/set/2.JPEG": "0 bytes that are not an image",
        "/set/5.JPEG": "26 bytes that are not an image",
        "/set/6.JPEG": "700 bytes that are not an image",
        "/set/9.JPEG": dict(reports[0])["/set/9.JPEG"],
        "/set/12.JPEG": dict(reports[0])["/set/12.JPEG"],
    }
    assert len(reports[0]) == len(BAD)  # once each
    assert len(expected[1]) > 25
    assert "image file is truncated" in dict(reports[0])["/set/9.JPEG"]
    assert "(Truncated File Read)" in dict(reports[0])["/set/12.JPEG"]


def test_central_crops_of_training_are_replaced_too():
    source, order = photos(), Order(3, EXAMPLES)
    ids, images, labels = joined(feed(source, account(), centre=True))
    bad = as_far_as_possible(source.read, np.arange(EXAMPLES))[1]
    wanted = order.ids(np.arange(STOP))
    while (failing := np.isin(wanted, bad)).any():
        wanted[failing] = (wanted[failing] + 1) % EXAMPLES
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(labels, ids % 3)
    mirrored = Augment(flip=True).flips(seed=3, epochs=np.arange(STOP) // EXAMPLES, ids=ids)
    unmirrored = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
    np.testing.assert_array_equal(unmirrored, as_far_as_possible(source.read, ids)[0][0])


def test_valid_images_are_not_replaced():
    clean, order = photos(bad=()), Order(3, EXAMPLES)
    unreadable = account(0.0)
    ids, images, _ = joined(feed(clean, unreadable))
    np.testing.assert_array_equal(ids, order.ids(np.arange(STOP)))
    epochs = np.arange(STOP) // EXAMPLES
    crops = clean.read_crops(ids, seed=3, epochs=epochs)[0]
    np.testing.assert_array_equal(images, Augment(flip=True)(crops, seed=3, epochs=epochs, ids=ids))
    assert (unreadable.count, unreadable.names, unreadable.ids) == (0, (), ())


@pytest.mark.parametrize("reading", [Reading(threads=0), READING])
def test_too_many_stop_the_run_with_the_numbers_and_the_names(reading):
    unreadable, reports = account(0.2), []  # two of thirteen
    unreadable.connect(lambda *words: reports.append(words), listed="/run/unreadable.jsonl")
    said = stores.complaint(list, feed(photos(), unreadable, reading=reading))
    assert said.startswith("train: 3 of 13 examples (23 %)")
    assert "data.max_unreadable=0.2 allows 2" in said
    assert len(reports) == unreadable.count == 3
    for name, reason in (*reports, ("/run/unreadable.jsonl", "--config.data.max_unreadable=0.5")):
        assert name in said
        assert reason in said


@pytest.mark.parametrize("unreadable", [None, account(0.0)])
def test_with_none_allowed_the_first_one_stops_the_run(unreadable):
    said = stores.complaint(list, feed(photos(bad=(5,)), unreadable))
    assert said.startswith("train: 1 of 13 examples (7.7 %)")
    assert "/set/5.JPEG (26 bytes" in said
    value = float(said.rpartition("--config.data.max_unreadable=")[2])
    list(feed(photos(bad=(5,)), account(value)))  # the value that it names works


@pytest.mark.parametrize(("share", "limit"), [(0.0, 0), (0.3, 3), (0.99, 12)])
def test_a_set_of_bad_images_only_ends(share, limit):
    source, unreadable = photos(bad=range(EXAMPLES)), account(share)
    assert unreadable.limit == limit
    with pytest.raises(DataError, match=f"{limit + 1} of 13 examples .* allows {limit}: "):
        list(feed(source, unreadable))
    if not limit:  # nothing replaces them; the first is read again to explain it
        assert sum(source._records.reads.values()) <= STOP + 1


@pytest.mark.parametrize("option", ["--config.data.max_unreadable", "--max_unreadable"])
def test_the_proposed_share_allows_twice_as_many(option):
    unreadable = Unreadable("train", 183, 0.001, option)
    unreadable.add(range(3), lambda example: (f"{example}.jpg", "cut off"))
    with pytest.raises(DataError) as caught:
        unreadable.add([3], lambda example: (f"{example}.jpg", "cut off"))
    value = float(str(caught.value).rpartition(f"{option}=")[2])
    assert Unreadable("train", 183, value).limit >= 8
    with pytest.raises(DataError, match=r"restore or remove these images$"):
        Unreadable("train", 183, 0.9).check(range(170))  # no value to propose


def test_the_limit_is_a_share_of_the_split():
    for examples, share, limit in (
        (100, 0.29, 29),  # 28.999999999999996 in floating point
        (1_281_167, 0.001, 1281),
        (10, 0.3, 3),
        (10_000, 0.0001, 3),  # 3 are allowed in any case,
        (183, 0.001, 3),
        (29, 0.001, 2),  # but no more than a tenth
        (9, 0.001, 0),
        (999, 0.0, 0),
    ):
        assert Unreadable("train", examples, share).limit == limit


@pytest.mark.parametrize(
    ("hosts", "reading"), [(1, READING), (2, READING), (4, READING), (1, APART)]
)
def test_evaluation_counts_a_grey_image_with_its_label(hosts, reading):
    source, share = photos(evaluation_crop=1.0), 8 // hosts
    accounts = [account(split="validation") for _ in range(hosts)]
    seen = [
        list(
            evaluation_batches(
                source, batch=8, rows=(r, r + share), reading=reading, unreadable=unreadable
            )
        )
        for r, unreadable in zip(range(0, 8, share), accounts, strict=True)
    ]
    parts = [part for step in zip(*seen, strict=True) for part in step]
    images, labels, mask = (
        np.concatenate([getattr(part, field) for part in parts])
        for field in ("images", "labels", "mask")
    )
    assert mask.sum() == EXAMPLES  # the denominator is exact
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(labels[:EXAMPLES], np.arange(EXAMPLES) % 3)
    good = [i for i in range(EXAMPLES) if i not in BAD]
    np.testing.assert_array_equal(images[good], photos(bad=(), evaluation_crop=1.0).read(
        np.array(good))[0])  # fmt: skip
    assert (images[list(BAD)] == GREY).all()
    assert not images[EXAMPLES:].any()
    assert sorted(i for unreadable in accounts for i in unreadable.ids) == list(BAD)


def test_evaluation_stops_above_the_limit():
    batches = evaluation_batches(
        photos(), batch=8, rows=(0, 8), reading=READING, unreadable=account(0.1, "validation")
    )
    with pytest.raises(DataError, match=r"^validation: 2 of 13 examples \(15 %\) cannot be dec"):
        list(batches)
    with pytest.raises(DataError, match=r"^validation: 1 of 13 .* data\.max_unreadable=0 allows 0"):
        list(evaluation_batches(photos(), batch=8, rows=(0, 8), reading=READING))


def test_rectangular_evaluation_counts_them():
    """Those without a header are squares; one that is cut off has its own shape."""
    source = photos(evaluation_crop=1.0)
    views = rectangular_views(source, READING, 64)
    clean = rectangular_views(photos(bad=()), READING, 64)
    assert sorted(np.concatenate([view.ids for view in views]).tolist()) == list(range(EXAMPLES))
    shapes = {i: view.shape for view in views for i in view.ids.tolist()}
    wanted = {i: view.shape for view in clean for i in view.ids.tolist()}
    assert shapes == wanted | dict.fromkeys((2, 5, 6, 12), (64, 64))
    unreadable = account(split="validation")
    batches = evaluation_batches(
        source, batch=4, rows=(0, 4), reading=READING, views=views, unreadable=unreadable
    )
    at = Counter()
    seen = {}
    for batch in batches:
        view = next(view for view in views if view.shape == batch.shape)
        assert batch.images.shape[1:3] == batch.shape
        for row in np.flatnonzero(batch.mask):
            seen[int(view.ids[at[batch.shape]])] = (batch.images[row], batch.labels[row])
            at[batch.shape] += 1
    assert sorted(seen) == list(range(EXAMPLES))
    for example, (image, label) in seen.items():
        assert label == example % 3
        assert (image == GREY).all() == (example in BAD)
    assert sorted(unreadable.ids) == list(BAD)


def test_a_missing_file_is_fatal(tmp_path):
    for name in "abcd":
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (30, 20)).save(tmp_path / "train" / name / "1.JPEG")
    source = open_source(f"folder:{tmp_path}", "train", SourceOptions(image_size=8))
    (tmp_path / "train" / "c" / "1.JPEG").unlink()
    unreadable = Unreadable("train", 4, 0.9)
    parts = train_microbatches(source, Order(0, 4, shuffle=False), Augment(), start=0, stop=4,
                               microbatch=1, rows=(0, 1), reading=READING,
                               unreadable=unreadable)  # fmt: skip
    assert [next(parts).ids.tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(DataError, match=r"train/c/1\.JPEG cannot be read: No such file"):
        next(parts)
    assert unreadable.count == 0


def test_a_plain_read_raises():
    source = photos()
    assert isinstance(source, FallibleSource)
    for read in (
        lambda: source.read(np.array([0, 6, 2])),
        lambda: source.read_crops(np.array([0, 6]), seed=0, epochs=np.zeros(2, np.int64)),
        lambda: source.sizes(np.array([6])),
    ):
        assert stores.complaint(read).startswith("/set/6.JPEG cannot be decoded: 700 bytes")
    (images, labels), rows = as_far_as_possible(source.read, np.array([0, 6, 1, 2]))
    assert rows.tolist() == [1, 3]
    np.testing.assert_array_equal(labels, [0, 0, 1, 2])
    np.testing.assert_array_equal(images[[0, 2]], source.read(np.array([0, 1]))[0])
    assert as_far_as_possible(source.sizes, np.array([6, 0]))[0][0].tolist() == [1, 1]


def test_a_bad_image_keeps_no_memory():
    source, out = photos(), np.empty((EXAMPLES, SIDE, SIDE, 3), np.uint8)
    gone = weakref.ref(out)
    gc.disable()
    try:
        drawn = {"seed": 0, "epochs": np.zeros(EXAMPLES, np.int64)}
        (images, _), rows = as_far_as_possible(
            functools.partial(source.read_crops, **drawn, out=out), np.arange(EXAMPLES)
        )
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
    assert sorted(map(int, reports)) == sorted(unreadable.ids) == [*range(60), 1000]
    assert unreadable.count == len(unreadable.names) == 61
    unreadable.check(range(30, 499))
    with pytest.raises(DataError, match=r"^train: 501 of 1,000 .*; and 496 more; restore"):
        unreadable.check(range(30, 500))


def test_the_count_does_not_wait_for_an_explanation():
    unreadable, begun, resume = account(), threading.Event(), threading.Event()

    def explain(example):
        begun.set()
        assert resume.wait(10)
        return "name", "reason"

    adding = threading.Thread(target=unreadable.add, args=([4], explain))
    adding.start()
    assert begun.wait(10)
    assert unreadable.count == 0
    resume.set()
    adding.join()
    assert unreadable.names == ("name",)


def test_files_of_a_folder_are_named_by_their_paths(tmp_path):
    forms = {"a/1.png": "JPEG", "a/2.JPEG": "PNG", "a/3.jpg": "GIF", "b/4.webp": "BMP"}
    for split in ("train", "val"):
        for index, (path, form) in enumerate(forms.items()):
            place = tmp_path / split / path
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30, 20), (9 * index, 90, 30)).save(place, form)
        (tmp_path / split / "b" / "5.JPEG").write_text("this is a text\n")
        (tmp_path / split / "b" / "6.JPEG").write_bytes(b"")
    options = SourceOptions(image_size=8)
    train, validation = (open_source(f"folder:{tmp_path}", s, options) for s in
                         ("train", "validation"))  # fmt: skip
    unreadable = Unreadable("train", 6, 0.5)
    order = Order(0, 6, shuffle=False)
    (part,) = train_microbatches(train, order, Augment(), start=0, stop=6, microbatch=6,
                                 rows=(0, 6), reading=READING, unreadable=unreadable)  # fmt: skip
    assert part.ids.tolist() == [0, 1, 2, 3, 0, 0]
    assert part.labels.tolist() == [0, 0, 0, 1, 0, 0]
    assert unreadable.names == tuple(f"{tmp_path}/train/b/{i}.JPEG" for i in (5, 6))
    assert [found.reason.split()[0] for found in unreadable.found] == ["15", "0"]
    unreadable = Unreadable("validation", 6, 0.5)
    (batch,) = evaluation_batches(validation, batch=6, rows=(0, 6), reading=READING,
                                  unreadable=unreadable)  # fmt: skip
    assert (batch.labels.tolist(), batch.mask.sum()) == ([0, 0, 0, 1, 1, 1], 6)
    assert unreadable.names == tuple(f"{tmp_path}/val/b/{i}.JPEG" for i in (5, 6))
