import gc
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from PIL import Image

from largebatch.data import (
    Augment,
    Order,
    Reading,
    Source,
    SourceOptions,
)
from largebatch.data.dataset import Dataset
from largebatch.data.feed import PIECE, Buffers, cores
from largebatch.errors import ConfigError, DataError
from tests.data.feeds import joined, training
from tests.data.test_dataset import Pictures

AUGMENT = Augment(shift=1, flip=True)


class Recorder(Source):
    """A source of 5×5 images whose pixels are a function of the example; records its reads."""

    name = "recorder"
    classes = ("even", "odd")
    image_shape = (5, 5, 1)
    mean = (0.0,)
    std = (1.0,)

    def __init__(self, examples, broken=None, delay=0.0):
        self.examples, self.broken, self.delay = examples, broken, delay
        self.error = DataError(f"example {broken} is truncated")
        self.reads = []

    def __len__(self):
        return self.examples

    def read(self, ids):
        self.reads.append(ids)
        time.sleep(self.delay)
        if self.broken in ids:
            raise self.error
        images = np.broadcast_to((1 + ids % 250)[:, None, None, None], (len(ids), 5, 5, 1))
        return images.astype(np.uint8), (ids % 2).astype(np.int32)


# Two rows of the largest images here, so that microbatches are put together from pieces.
PIECES = Reading(threads=2, memory_bytes=1000, piece_bytes=2 * 6 * 6 * 3)


def feed(source, order, *, augment=AUGMENT, reading=PIECES, **options):
    dataset = source if isinstance(source, Dataset) else Dataset(source, SourceOptions())
    return training(dataset, augment, order=order, reading=reading, **options)


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("largebatch-read")]


def assert_threads_end():
    limit = time.monotonic() + 300
    while readers() and time.monotonic() < limit:
        time.sleep(0.01)
    assert not readers()


# Seven epochs, whose boundaries are inside microbatches.
EXAMPLES, STOP = 17, 120


@pytest.mark.parametrize("centre", [False, True])
def test_images_are_those_of_the_source_cropped_and_augmented_by_seed_epoch_and_id(centre):
    source = Dataset(Pictures(EXAMPLES), SourceOptions(image_size=6))
    order = Order(3, EXAMPLES)
    found = feed(source, order, start=0, stop=STOP, microbatch=40, centre=centre)
    ids, images, labels = joined(found)
    keys = {"seed": 3, "epochs": np.arange(STOP) // EXAMPLES}
    crops = source.read_centres(ids) if centre else source.read_crops(ids, **keys)
    np.testing.assert_array_equal(images, AUGMENT(crops.images, **keys, ids=ids))
    np.testing.assert_array_equal(labels, crops.labels)


def test_no_more_is_read_than_asked_for():
    source, ahead = Recorder(10**9), 3
    reading = Reading(threads=2, memory_bytes=ahead * 1000 * 25)  # one microbatch is one piece
    batches = feed(source, Order(0, 10**9), start=0, stop=10**9, microbatch=1000, reading=reading)
    assert source.reads == []
    next(batches)
    limit = time.monotonic() + 300
    while len(source.reads) < 1 + ahead and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.1)  # time enough to read too much
    assert len(source.reads) == 1 + ahead
    batches.close()
    assert_threads_end()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_the_source_is_raised_unchanged(threads):
    order = Order(0, 40)
    source = Recorder(40, broken=int(order.ids(np.array(25))))
    reading = Reading(threads=threads, piece_bytes=25 * 5)
    batches = feed(source, order, start=0, stop=40, microbatch=10, reading=reading)
    assert [next(batches).position, next(batches).position] == [0, 10]
    with pytest.raises(DataError) as caught:
        next(batches)
    assert caught.value is source.error
    with pytest.raises(StopIteration):
        next(batches)
    assert_threads_end()


@pytest.mark.multiprocess
def test_an_open_iterator_does_not_keep_the_process_alive_or_abort_it(tmp_path):
    """Threads that are decoding at the end come back from C++ code."""
    for split in ("train", "val"):
        for name in "ab":
            path = tmp_path / split / name / "1.JPEG"
            path.parent.mkdir(parents=True)
            pixels = np.random.default_rng(0).integers(0, 256, (500, 500, 3), np.uint8)
            Image.fromarray(pixels).save(path)
    code = (
        "from largebatch.data import *\n"
        f"dataset = open_dataset('folder:{tmp_path}', 'train')\n"
        "batches = train_microbatches(dataset, Order(0, len(dataset)), Augment(), start=0,"
        " stop=10**12, microbatch=100, rows=(0, 100), reading=Reading(threads=4))\n"
        "parts = ahead(batches, lambda batch: batch.position, 2)\n"
        "print(next(parts))\nraise KeyError('planned')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == "0\n"
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'planned'")


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"stop": 101}, "101"),
        ({"start": 10, "stop": 0}, "10 to 0"),
        ({"start": -10}, "-10"),
        ({"rows": (5, 11)}, "11"),
        ({"rows": (5, 5)}, "5"),
        ({"rows": (-1, 5)}, "-1"),
        ({"order": Order(0, 41)}, "41"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_the_call(change, value):
    arguments = {"order": Order(0, 40), "start": 0, "stop": 100, "microbatch": 10} | change
    with pytest.raises(ConfigError, match=value):
        feed(Recorder(40), **arguments)


def test_what_the_device_erases_and_mixes_is_a_function_of_the_position():
    """Processes, microbatches and pieces of any size deliver the same arrays."""
    augment = Augment(flip=True, erase=0.5, mixup=0.2, cutmix=1.0)
    order = Order(1, EXAMPLES)

    def arrays(**options):
        parts = list(feed(Recorder(EXAMPLES), order, augment=augment, **options))
        return [np.concatenate([getattr(p, n) for p in parts]) for n in ("erased", "mixtures")]

    whole = arrays(start=0, stop=96, microbatch=48)
    assert [x.shape for x in whole] == [(96, 4), (96, 6)]
    assert (whole[0] > 0).any()
    np.testing.assert_array_equal(whole[1][::2], whole[1][1::2])
    for found, expected in zip(arrays(start=36, stop=96, microbatch=6), whole, strict=True):
        np.testing.assert_array_equal(found, expected[36:])
    halves = [arrays(start=0, stop=96, microbatch=96, rows=r) for r in ((0, 40), (40, 96))]
    for first, last, expected in zip(*halves, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate([first, last]), expected)
    source = Recorder(EXAMPLES)
    (plain,) = feed(source, order, start=0, stop=9, microbatch=9)
    assert plain.erased is plain.mixtures is None
    with pytest.raises(ConfigError, match=r"augment\.mixup"):
        feed(source, order, start=0, stop=9, microbatch=9, augment=augment)


@pytest.mark.parametrize("threads", [0, 1, 64])
def test_two_pieces_of_each_thread_fit_the_memory(threads):
    reading = Reading.of(threads)
    assert reading.threads == (threads or min(16, cores()))
    assert 2 * reading.threads * reading.piece_bytes <= reading.memory_bytes
    assert reading.piece_bytes <= PIECE


# ---- memory of the batches


def test_memory_is_used_again_only_when_nothing_refers_to_it():
    made = Buffers()
    first = made.array((64, 5))
    first[:] = 7
    place = first.ctypes.data
    view, on_device = first[1:][:, ::2], jax.device_put(first)
    del first
    others = [made.array((64, 5)) for _ in range(5)]
    for other in others:
        other[:] = 0
    assert (view == 7).all()
    assert (np.asarray(on_device) == 7).all()
    assert place not in [other.ctypes.data for other in others]
    del view, on_device
    gc.collect()
    assert made.array((5, 64)).ctypes.data == place  # of the same size, whatever its shape
    del others
    assert len(made._free) == 2  # the rest is given back
