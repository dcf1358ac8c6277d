import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    evaluation_batches,
    open_source,
    train_microbatches,
)
from largebatch.data.randomness import mix
from largebatch.errors import ConfigError, DataError
from tests.data.feeds import assert_same, joined

AUGMENT = Augment(shift=1, flip=True)


class Recorder:
    """A source of 5×5 images whose every pixel tells its example; records what is read."""

    name = "recorder"
    classes = ("even", "odd")
    image_shape = (5, 5, 1)
    mean = (0.0,)
    std = (1.0,)

    def __init__(self, examples, broken=None, delay=0.0):
        self.examples, self.broken, self.delay = examples, broken, delay
        self.reads = []

    def __len__(self):
        return self.examples

    def read(self, ids):
        self.reads.append(ids)
        time.sleep(self.delay)
        if self.broken in ids:
            raise DataError(f"recorder: example {self.broken} is truncated; fetch it again")
        images = np.broadcast_to((1 + ids % 250)[:, None, None, None], (len(ids), 5, 5, 1))
        return images.astype(np.uint8), (ids % 2).astype(np.int32)

    def describe(self):
        return "recorder"


class Cropper(Recorder):
    """A source whose training images depend on seed, epoch and example, as random crops do."""

    def read_crops(self, ids, *, seed, epochs, out=None):
        _, labels = self.read(ids)
        out = np.empty((len(ids), 5, 5, 1), np.uint8) if out is None else out
        out[:] = mix(seed, epochs, ids).astype(np.uint8)[:, None, None, None]
        return out, labels


# Two rows of the largest images here, so that microbatches are put together from pieces.
PIECES = Reading(threads=2, memory_bytes=1000, piece_bytes=2 * 6 * 6 * 3)


def feed(
    source, order, *, start, stop, microbatch, rows=None, augment=AUGMENT, reading=PIECES, **others
):
    return train_microbatches(
        source,
        order,
        augment,
        start=start,
        stop=stop,
        microbatch=microbatch,
        rows=rows or (0, microbatch),
        reading=reading,
        **others,
    )


def grain_threads():
    return [t for t in threading.enumerate() if t.name.startswith("grain-prefetch")]


def assert_threads_end():
    limit = time.monotonic() + 10
    while grain_threads() and time.monotonic() < limit:
        time.sleep(0.01)
    assert not grain_threads()


# 17 examples and 120 positions: seven epochs, boundaries inside microbatches, and microbatches
# larger than the dataset.
EXAMPLES, STOP = 17, 120


@pytest.fixture(scope="module", params=["synthetic", "cropping"])
def source(request):
    if request.param == "cropping":
        return Cropper(EXAMPLES)
    return open_source("synthetic", "train", SourceOptions(image_size=6, examples=EXAMPLES))


@pytest.fixture(scope="module")
def expected(source):
    """Every position by itself, read in the caller's thread."""
    return joined(
        feed(
            source, Order(3, EXAMPLES), start=0, stop=STOP, microbatch=1, reading=Reading(threads=0)
        )
    )


@pytest.mark.parametrize("microbatch", [4, 24, 40, 120])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_samples_do_not_depend_on_processes_or_microbatch(source, expected, microbatch, processes):
    order = Order(3, EXAMPLES)
    share = microbatch // processes
    shares = [
        list(feed(source, order, start=0, stop=STOP, microbatch=microbatch, rows=(r, r + share)))
        for r in range(0, microbatch, share)
    ]
    for parts in shares:
        assert [part.position for part in parts] == list(range(0, STOP, microbatch))
        assert all(len(part.ids) == len(part.images) == share for part in parts)
    assert_same(joined(part for turn in zip(*shares, strict=True) for part in turn), expected)


@pytest.mark.parametrize("start", [1, 16, 17, 40, 83, 120])
def test_a_resumed_feed_continues_where_it_stopped(source, expected, start):
    order = Order(3, EXAMPLES)
    parts = list(feed(source, order, start=start, stop=STOP, microbatch=1))
    assert [part.position for part in parts] == list(range(start, STOP))
    if parts:
        assert_same(joined(parts), [field[start:] for field in expected])


def test_rows_need_not_be_equal(source, expected):
    order = Order(3, EXAMPLES)
    for first, last in ((0, 1), (1, 37), (37, 40)):
        parts = feed(source, order, start=40, stop=80, microbatch=40, rows=(first, last))
        assert_same(joined(parts), [field[40 + first : 40 + last] for field in expected])


def test_training_follows_the_order_and_changes_with_epoch_and_seed(source, expected):
    ids, images, labels = expected
    order = Order(3, EXAMPLES)
    np.testing.assert_array_equal(ids, order.ids(np.arange(STOP)))
    np.testing.assert_array_equal(labels, source.read(ids)[1])
    first, second = (np.argsort(ids[e * 17 : e * 17 + 17]) for e in (0, 1))
    again = (images[first] == images[17 + second]).all((1, 2, 3))  # one draw in 18 agrees
    assert again.mean() < 0.5
    other = joined(feed(source, Order(4, EXAMPLES), start=0, stop=STOP, microbatch=8))
    assert not np.array_equal(other[0], ids)


def test_images_are_those_of_the_source_augmented_by_seed_epoch_and_id():
    source = open_source("synthetic", "train", SourceOptions(image_size=6, examples=EXAMPLES))
    order = Order(3, EXAMPLES)
    ids, images, _ = joined(feed(source, order, start=0, stop=STOP, microbatch=40))
    epochs = np.arange(STOP) // EXAMPLES
    wanted = AUGMENT(source.read(ids)[0], seed=3, epochs=epochs, ids=ids)
    np.testing.assert_array_equal(images, wanted)


def test_a_cropping_source_is_given_seed_epochs_and_ids():
    order = Order(3, EXAMPLES)
    parts = feed(Cropper(EXAMPLES), order, start=0, stop=STOP, microbatch=40, augment=Augment())
    ids, images, _ = joined(parts)
    wanted = mix(3, np.arange(STOP) // EXAMPLES, ids).astype(np.uint8)
    np.testing.assert_array_equal(images[:, 2, 2, 0], wanted)


def test_a_cropping_source_may_be_seen_as_evaluation_sees_it():
    """In index order, as the record's last epochs; the random crops are not asked for."""
    order = Order(3, EXAMPLES, shuffle=False)
    parts = feed(
        Cropper(EXAMPLES), order, start=0, stop=STOP, microbatch=40, augment=Augment(), centre=True
    )
    ids, images, _ = joined(parts)
    np.testing.assert_array_equal(ids, np.arange(STOP) % EXAMPLES)
    np.testing.assert_array_equal(images, Recorder(EXAMPLES).read(ids)[0])


def test_only_this_process_rows_are_read():
    source = Recorder(1000)
    order = Order(0, 1000)
    list(feed(source, order, start=40, stop=120, microbatch=40, rows=(10, 20)))
    read = np.sort(np.concatenate(source.reads))
    wanted = np.concatenate([np.arange(50, 60), np.arange(90, 100)])
    np.testing.assert_array_equal(read, np.sort(order.ids(wanted)))


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_is_read_than_asked_for(ahead):
    source = Recorder(10**9)
    reading = Reading(threads=2, memory_bytes=ahead * 1000 * 25)  # one microbatch is one piece
    batches = feed(source, Order(0, 10**9), start=0, stop=10**9, microbatch=1000, reading=reading)
    assert source.reads == []
    next(batches)
    limit = time.monotonic() + 10
    while len(source.reads) < 1 + ahead and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.1)  # time enough to read too much
    assert len(source.reads) == 1 + ahead
    batches.close()
    assert_threads_end()


@pytest.mark.parametrize("whole", [True, False])
def test_memory_is_that_of_the_pieces_in_hand_and_one_microbatch(whole):
    size, rows = 224, 8
    source = open_source(
        "synthetic", "train", SourceOptions(image_size=size, examples=1_281_167, classes=1000)
    )
    local = rows * size * size * 3
    order = Order(0, len(source))
    stop = 10**9 + 40 * rows
    reading = Reading(threads=1, memory_bytes=2 * local, piece_bytes=local if whole else local // 8)
    batches = feed(source, order, start=10**9, stop=stop, microbatch=rows, reading=reading)
    tracemalloc.start()
    for _ in batches:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two waiting, one in hand, one being put together and one being augmented, in several copies.
    assert peak < 10 * local  # all forty would be 40


@pytest.mark.parametrize("threads", [0, 2])
def test_a_source_error_reaches_the_consumer_as_it_is(threads):
    source = Recorder(40, broken=25)
    order = Order(0, 40, shuffle=False)
    reading = Reading(threads=threads, piece_bytes=25 * 5)
    batches = feed(source, order, start=0, stop=40, microbatch=10, reading=reading)
    assert [next(batches).position, next(batches).position] == [0, 10]
    with pytest.raises(DataError) as caught:
        next(batches)
    assert type(caught.value) is DataError
    assert str(caught.value) == "recorder: example 25 is truncated; fetch it again"
    with pytest.raises(StopIteration):
        next(batches)
    assert_threads_end()


def test_an_evaluation_error_reaches_the_consumer_as_it_is():
    batches = evaluation_batches(Recorder(40, broken=25), batch=10, rows=(0, 10), reading=PIECES)
    with pytest.raises(DataError, match="example 25 is truncated"):
        list(batches)
    assert_threads_end()


@pytest.mark.parametrize("how", ["close", "drop", "exhaust"])
def test_the_threads_end_with_the_iterator(how):
    source = Recorder(10**6, delay=0.02)
    stop = 100 if how == "exhaust" else 10**6
    reading = Reading(threads=4, memory_bytes=8 * 250)
    batches = feed(source, Order(0, 10**6), start=0, stop=stop, microbatch=10, reading=reading)
    next(batches)
    assert grain_threads()
    before = time.monotonic()
    if how == "close":
        batches.close()
    elif how == "drop":
        del batches
    else:
        assert len(list(batches)) == 9
    assert time.monotonic() - before < 5
    assert_threads_end()
    assert len(source.reads) <= 10  # of 100,000: what was queued is cancelled


@pytest.mark.parametrize("ending", ["pass", "raise KeyError('planned')"])
def test_an_open_iterator_does_not_keep_the_process_alive(ending):
    code = (
        "from largebatch.data import *\n"
        "source = open_source('synthetic', 'train')\n"
        "batches = train_microbatches(source, Order(0, len(source)), Augment(), start=0,"
        " stop=10**12, microbatch=100, rows=(0, 100), reading=Reading(threads=2))\n"
        f"print(next(batches).position)\n{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "0\n"
    assert (done.returncode, "planned" in done.stderr) == (
        (0, False) if ending == "pass" else (1, True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stop": 101}, r"positions 0 to 101 .* 10;"),
        ({"start": 10, "stop": 0}, "positions 10 to 0"),
        ({"start": -10}, "positions -10 to 100"),
        ({"rows": (5, 11)}, r"rows \[5, 11\) .* batch of 10"),
        ({"rows": (5, 5)}, r"rows \[5, 5\)"),
        ({"microbatch": 0, "rows": (0, 0)}, "batch of 0"),
        ({"order": Order(0, 41)}, "expected 40 examples of recorder, got 41"),
    ],
)
def test_numbers_that_do_not_fit_are_named_by_the_call(change, said):
    arguments = {"order": Order(0, 40), "start": 0, "stop": 100, "microbatch": 10} | change
    with pytest.raises(ConfigError, match=said) as caught:
        feed(Recorder(40), **arguments)
    assert "\n" not in str(caught.value)


def test_reading_refuses_negative_numbers():
    for field in ("threads", "processes", "memory_bytes"):
        with pytest.raises(ConfigError, match=rf"data\.{field}: .*got -1"):
            Reading(**{field: -1})


@pytest.mark.parametrize("examples", [1, 7, 8, 9, 16, 17, 360])
@pytest.mark.parametrize("batch", [8, 400])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_evaluation_sees_every_example_once(examples, batch, processes):
    source = Recorder(examples)
    share = batch // processes
    shares = [
        list(evaluation_batches(source, batch=batch, rows=(r, r + share), reading=PIECES))
        for r in range(0, batch, share)
    ]
    count = -(-examples // batch)
    assert [len(parts) for parts in shares] == [count] * processes
    parts = [part for turn in zip(*shares, strict=True) for part in turn]
    images = np.concatenate([part.images for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    mask = np.concatenate([part.mask for part in parts])
    assert (images.dtype, labels.dtype, mask.dtype) == (np.uint8, np.int32, np.float32)
    assert len(images) == len(labels) == len(mask) == count * batch
    # In index order, then padding.
    np.testing.assert_array_equal(mask, np.arange(count * batch) < examples)
    wanted_images, wanted_labels = Recorder(examples).read(np.arange(examples))
    np.testing.assert_array_equal(images[:examples], wanted_images)
    np.testing.assert_array_equal(labels[:examples], wanted_labels)
    assert not images[examples:].any()
    assert not labels[examples:].any()
    assert sorted(np.concatenate(source.reads).tolist()) == list(range(examples))


def test_evaluation_of_a_cropping_source_is_not_random():
    source = Cropper(5)
    (batch,) = evaluation_batches(source, batch=5, rows=(0, 5), reading=Reading(threads=0))
    np.testing.assert_array_equal(batch.images, Recorder(5).read(np.arange(5))[0])
