"""What an image costs in other stores: a sample of the set, re-encoded and decoded here and now."""

import atexit
import collections
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.photo_set import QUALITY, SIDE, reencoded
from benchmarks.product import microbatches, options, order, records, training_split
from benchmarks.runner import Figures
from benchmarks.workload import Workload
from largebatch.data import open_source
from largebatch.data.boxes import random_boxes
from largebatch.data.decoded_store import write_index, write_shard
from largebatch.data.images import Picture, decode, resize

_SAMPLE = 128
_BATCHES = 10


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`; figures are µs of processor time per image."""
    encoded, source = records(work), training_split(work)
    sample = min(_SAMPLE, len(source))
    ids = order(source, work).ids(np.arange(sample, dtype=np.int64))
    epochs = np.zeros(sample, np.int64)
    contents, _ = encoded.read(ids)
    small = [reencoded(content, SIDE, QUALITY) for content in contents]
    shape, resampling = source.image_shape[:2], options(work).resampling
    folder = tempfile.mkdtemp(prefix="largebatch-benchmark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_store(Path(folder), contents)
    stored = open_source(f"decoded:{folder}", "train", options(work))
    fed = _BATCHES * work.batch

    def views(pictures: Sequence[bytes]) -> None:
        opened = [Picture(content) for content in pictures]
        sizes = np.array([(p.height, p.width) for p in opened], np.int64)
        boxes = random_boxes(sizes, seed=work.seed, epochs=epochs, ids=ids)
        for picture, box in zip(opened, boxes.tolist(), strict=True):
            picture.view(tuple(box), shape, resampling)

    def repeat() -> Figures:
        return {
            "as_stored": _us(sample, lambda: views(contents)),
            "reencoded": _us(sample, lambda: views(small)),
            # Fed as in training: reading is so cheap here that the rest of the path is what counts.
            "decoded": _us(fed, lambda: collections.deque(microbatches(stored, work, stop=fed), 0)),
        }

    return repeat


def write_store(directory: Path, contents: Sequence[bytes]) -> None:
    """A decoded store of pictures, each squeezed into SIDE × SIDE; all of one class."""
    pictures = [decode(content) for content in contents]
    shard = write_shard(
        directory,
        "train",
        0,
        1,
        [resize(pixels, (SIDE, SIDE), "antialias") for pixels in pictures],
        [0] * len(pictures),
        [pixels.shape[:2] for pixels in pictures],
    )
    write_index(directory, size=SIDE, classes=("all",), shards={"train": [shard]})


def _us(images: int, work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e6 * (time.process_time() - start) / images
