"""Every image of a split once, through the reading and the batches of training's evaluation."""

import collections
import contextlib
from collections.abc import Callable, Generator

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.data.openers import open_records
from largebatch.data.sources import Split
from largebatch.errors import ConfigError, DataError
from largebatch.parallel import processes
from largebatch.parallel.transfer import on_devices
from largebatch.weights.evaluation.channels import with_channels
from largebatch.weights.evaluation.classifier import Classifier
from largebatch.weights.evaluation.outcomes import Kept, Outcomes, gathered
from largebatch.weights.evaluation.settings import Settings

_EACH = 64  # images at a time on a device, unless told
_MEMORY = 512 << 20
_PENDING = 2

Part = tuple[np.ndarray, np.ndarray, Kept]
"""Ids, labels of the source, and what is kept of each; on the host, without padding."""


def open_split(settings: Settings, split: Split, channels: int) -> data.Source:
    """The images to evaluate on, of as many channels as the network takes.

    Raises:
        DataError: As of `data.open_source`, or no images.
        ConfigError: Likewise.
    """
    source = data.open_source(settings.source, split, settings.options)
    if not len(source):
        raise DataError(f"{source.name} has no {split} images; give another --split or --source")
    return with_channels(source, channels, settings.mean, settings.std)


def batch_size(images: int, devices: int, asked: int = 0) -> int:
    """Rows of a batch: a multiple of the devices, no more than the images need.

    Args:
        images: Of the split.
        devices: That share a batch.
        asked: What the user asks for; 0 for 64 a device.

    Raises:
        ConfigError: It is negative.
    """
    if asked < 0:
        raise ConfigError(f"--batch={asked} must be above 0, or 0 for {_EACH} a device")
    rows = min(asked or _EACH * devices, images)
    return -(-rows // devices) * devices


def views_of(source: data.Source, settings: Settings, reading: data.Reading) -> tuple:
    """Which examples are seen at which shape."""
    if settings.rectangular:
        return data.rectangular_views(source, reading, settings.side)
    return data.square_views(source, settings.side)


def reading_of(threads: int = 0) -> data.Reading:
    """Who reads: `threads`, 0 for one on each core."""
    threads = threads or data.cores()
    piece = min(data.PIECE, _MEMORY // (2 * threads))  # work for each, and more waiting
    return data.Reading(threads=threads, memory_bytes=_MEMORY, piece_bytes=piece)


def parts_of(
    classifier: Classifier,
    source: data.Source,
    settings: Settings,
    unreadable: data.Unreadable,
    *,
    batch: int,
    reading: data.Reading,
) -> Generator[Part]:
    """What is kept of the images, batch by batch.

    Args:
        classifier: Computes it.
        source: The images.
        settings: How they are seen.
        unreadable: Accounts for those that cannot be decoded; they are seen as the mean grey.
        batch: Rows at a time, a multiple of the devices.
        reading: Threads and memory.

    Yields:
        A part for each batch, in the order of the views.

    Raises:
        DataError: An image cannot be read, or too many cannot be decoded.
    """
    views = views_of(source, settings, reading)
    batches = data.evaluation_batches(
        source,
        batch=batch,
        rows=(0, batch),
        reading=reading,
        crops="device" if settings.on_device else "host",
        views=views,
        unreadable=unreadable,
    )
    ids = (v.ids[at : at + batch] for v in views for at in range(0, len(v.ids), batch))
    pending: collections.deque = collections.deque()

    def taken() -> Part:
        chosen, labels, kept = pending.popleft()
        count = len(chosen)
        labels, kept = jax.device_get((labels, kept))
        return chosen, labels[:count], Kept(*(field[:count] for field in kept))

    with contextlib.closing(on_devices(classifier.mesh, batches)) as sent:
        for chosen, fed in zip(ids, sent, strict=True):
            pending.append((chosen, fed.labels, classifier(fed)))
            if len(pending) > _PENDING:  # bounds the batches that wait on the devices
                yield taken()
    while pending:
        yield taken()


def evaluate(
    classifier: Classifier,
    source: data.Source,
    settings: Settings,
    unreadable: data.Unreadable,
    places: np.ndarray,
    *,
    batch: int,
    reading: data.Reading,
    advance: Callable[[int], None] = lambda images: None,
) -> Outcomes:
    """The outcomes of a whole split.

    Args:
        classifier: As of `parts_of`, as the further ones.
        source: Likewise.
        settings: Likewise.
        unreadable: Likewise.
        places: int32 (labels of the source,): the class that each is.
        batch: As above.
        reading: As above.
        advance: Told how many images are done, after each batch.

    Raises:
        DataError: As of `parts_of`, or the images counted are not those of the split.
    """
    parts = []
    for ids, labels, kept in parts_of(
        classifier, source, settings, unreadable, batch=batch, reading=reading
    ):
        parts.append((ids, places[labels].astype(np.int32), kept))
        advance(len(ids))
    outcomes = gathered(parts)
    if not np.array_equal(outcomes.ids, np.arange(len(source))):
        raise DataError(
            f"evaluation saw {len(outcomes):,} images of {len(source):,}; the source is at fault"
        )
    return outcomes


def names_of(settings: Settings, split: Split) -> Callable[[int], str]:
    """Where an image is, by its id: its file or record; '' for sets that are not made of files."""
    records = open_records(settings.source, split, settings.options)
    return records.where if records else lambda example: ""


def local_mesh() -> jax.sharding.Mesh:
    """All devices of this process."""
    processes.check_devices()
    return parallel.make_mesh(jax.local_devices(), 1)
