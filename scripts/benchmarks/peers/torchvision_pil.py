"""Pillow as torchvision uses it: RandomResizedCrop (whole decode, antialiased bilinear) and flip.

In torch's DataLoader with a worker process for each core beyond one, uint8 out. Where torch is
absent, the same Pillow calls in threads. The encoded bytes come through our own reader.
"""

import functools
import io
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.product import records
from benchmarks.runner import Figures, timed
from benchmarks.workload import Workload
from largebatch.data.boxes import random_boxes
from largebatch.data.records import Records


def prepare(work: Workload) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    read = records(work)
    return timed((_threads if _missing() else _loader)(read, work), work)


def about(work: Workload) -> str:
    """How it is done here."""
    if reason := _missing():
        return f"Pillow in threads, since torchvision cannot be imported: {reason}"
    return "torchvision.transforms on Pillow, in torch's DataLoader"


@functools.cache
def _missing() -> str:
    """Why torchvision cannot be imported; empty if it can."""
    try:
        import torch
        import torchvision  # noqa: F401
    except Exception as error:  # its binary part may also fail to load or not match torch's
        return f"{type(error).__name__}: {error}"
    torch.set_num_threads(1)
    return ""


class Photographs:
    """A map-style data set of torch: the crop of one picture, and its label."""

    def __init__(self, read: Records, side: int) -> None:
        from torchvision import transforms

        self._read = read
        self._transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(side),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self._read)

    def __getitem__(self, example: int) -> tuple:
        """uint8 (3, side, side) and the label."""
        from PIL import Image

        (content,), labels = self._read.read(np.array([example], np.int64))
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        return self._transform(picture), int(labels[0])


def _loader(read: Records, work: Workload) -> Iterator[int]:
    from torch.utils.data import DataLoader, RandomSampler

    # Long enough never to end: torch would stop and start the workers' queues at each epoch's end.
    sampler = RandomSampler(range(len(read)), replacement=True, num_samples=1 << 30)
    loader = DataLoader(
        Photographs(read, work.image_size or 224),
        batch_size=work.batch,
        sampler=sampler,
        num_workers=work.threads if work.threads > 1 else 0,
    )
    for _, labels in loader:
        yield len(labels)


def _threads(read: Records, work: Workload) -> Iterator[int]:
    side = work.image_size or 224
    chance = np.random.default_rng(work.seed)
    with ThreadPoolExecutor(work.threads) as pool:
        for epoch in itertools.count():
            ids = chance.integers(len(read), size=work.batch)
            tasks = [pool.submit(_crop, read, example, epoch, side, work.seed) for example in ids]
            yield len(np.stack([task.result() for task in tasks]))


def _crop(read: Records, example: int, epoch: int, side: int, seed: int) -> np.ndarray:
    from PIL import Image

    (content,), _ = read.read(np.array([example], np.int64))
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    size = np.array([[picture.height, picture.width]], np.int64)
    keys = {"seed": seed, "epochs": np.array([epoch]), "ids": np.array([example])}
    top, left, height, width = random_boxes(size, **keys)[0].tolist()
    view = picture.crop((left, top, left + width, top + height))
    view = view.resize((side, side), Image.Resampling.BILINEAR)
    if (epoch + example) % 2:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(view)
