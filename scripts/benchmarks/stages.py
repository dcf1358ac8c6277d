"""Where our time goes: the product's own functions, one stage after the other, on the same ids."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.product import FLIP, options, order, records, training_split
from benchmarks.runner import Figures
from benchmarks.workload import Workload
from largebatch.data import examples
from largebatch.data import images as pictures
from largebatch.data.boxes import random_boxes

STAGES = ("order", "read", "parse", "header", "boxes", "memory", "decode", "resize", "flip", "copy")
"""order: ids of the positions; read: records from the files; parse: into picture and
label, where they are examples of TFDS; header: of the picture;
boxes: random crops; memory: fresh, for the results; decode: of the box; flip: of half of them;
copy: into the batch, as the pieces of a microbatch are."""


class Stopwatch:
    """Processor seconds of this process, by stage."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Adds what the block takes to `stage`."""
        start = time.process_time()
        yield
        self.spent[stage] += time.process_time() - start


@contextmanager
def _within(
    watch: Stopwatch, stage: str, outer: str, module: ModuleType, name: str
) -> Iterator[None]:
    """Times a function that the block calls inside its own stage, and takes it out of that."""
    function, before = getattr(module, name), watch.spent[stage]

    def timed(*arguments: Any, **named: Any) -> Any:
        with watch(stage):
            return function(*arguments, **named)

    setattr(module, name, timed)
    try:
        with watch(outer):
            yield
    finally:
        setattr(module, name, function)
        watch.spent[outer] -= watch.spent[stage] - before


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`; figures are µs of processor time per image."""
    encoded = records(work)
    source = training_split(work)
    shuffled, resampling = order(source, work), options(work).resampling
    shape = source.image_shape[:2]
    whole = np.zeros((work.batch, *shape, 3), np.uint8)
    starts = itertools.count(0, work.batch)

    def batch(watch: Stopwatch) -> None:
        start = next(starts)
        with watch("order"):
            positions = np.arange(start, start + work.batch, dtype=np.int64)
            ids, epochs = shuffled.ids(positions), shuffled.epochs(positions)
        with _within(watch, "parse", "read", examples, "parse"):
            contents, _ = encoded.read(ids)
        with watch("header"):
            opened = [pictures.Picture(content) for content in contents]
        with watch("boxes"):
            sizes = np.array([(p.height, p.width) for p in opened], np.int64)
            boxes = random_boxes(sizes, seed=work.seed, epochs=epochs, ids=ids)
        with watch("memory"):
            out = np.empty((work.batch, *shape, 3), np.uint8)
            out.fill(0)  # else the first stage that writes would pay for the memory
        with _within(watch, "resize", "decode", pictures, "resize"):
            for row, (picture, box) in enumerate(zip(opened, boxes.tolist(), strict=True)):
                picture.view(tuple(box), shape, resampling, out=out[row])
        with watch("flip"):
            out = FLIP(out, seed=work.seed, epochs=epochs, ids=ids)
        with watch("copy"):
            whole[...] = out

    def repeat() -> Figures:
        watch, images = Stopwatch(), 0
        while images < work.images:
            batch(watch)
            images += work.batch
        return {stage: 1e6 * seconds / images for stage, seconds in watch.spent.items()}

    return repeat
