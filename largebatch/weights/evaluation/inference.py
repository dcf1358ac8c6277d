"""Runs a network over every image of a split, or over files, with training's own reading."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.data import Split
from largebatch.errors import ConfigError, DataError
from largebatch.parallel import processes
from largebatch.parallel.transfer import IN_FLIGHT, on_devices
from largebatch.weights.evaluation.classifier import Classifier, Outputs
from largebatch.weights.evaluation.images import ImageFiles
from largebatch.weights.evaluation.settings import Settings

_PER_DEVICE = 64
_MEMORY_BYTES = 512 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Outcomes:
    """The outputs for all images of a split, in the order of their ids.

    Attributes:
        labels: int32 (images,), among the classes of the logits.
        outputs: On the host.
    """

    labels: np.ndarray
    outputs: Outputs

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predicted(self) -> np.ndarray:
        """int32 (images,): the most probable class, −1 without finite probabilities."""
        return self.outputs.top[:, 0]

    @property
    def confidence(self) -> np.ndarray:
        """float32 (images,): the probability of the most probable class."""
        return self.outputs.probabilities[:, 0]


def open_split(settings: Settings, split: Split, channels: int) -> data.Dataset:
    """Open the images to evaluate on, with the network's number of channels.

    Raises:
        DataError: They cannot be opened, or there are none.
        ConfigError: A setting does not fit the source.
    """
    found = data.open_dataset(settings.source, split, settings.options)
    if not len(found):
        raise DataError(f"{found.name} has no {split} images; use another --split or --source")
    return found.with_channels(channels, settings.mean, settings.std)


def local_mesh() -> jax.sharding.Mesh:
    """Return a mesh of all devices of this process."""
    processes.prepare_devices()
    return parallel.make_mesh(jax.local_devices(), 1)


def batch_size(images: int, devices: int, requested: int = 0) -> int:
    """Return the rows of a batch: a multiple of the devices, no more than the images need.

    Args:
        images: Number of images in all.
        devices: That share a batch.
        requested: ``--batch``; 0 for 64 a device.

    Raises:
        ConfigError: It is negative.
    """
    if requested < 0:
        raise ConfigError(
            f"--batch={requested}: expected 1 or more, or 0 for {_PER_DEVICE} a device"
        )
    rows = min(requested or _PER_DEVICE * devices, images)
    return -(-rows // devices) * devices


def batch_outputs(
    classifier: Classifier,
    dataset: data.Dataset,
    settings: Settings,
    unreadable: data.Unreadable,
    *,
    batch: int = 0,
) -> Generator[tuple[np.ndarray, np.ndarray, Outputs]]:
    """Run the network over a dataset, batch by batch.

    Args:
        classifier: The network.
        dataset: The images.
        settings: How they are prepared.
        unreadable: Counts corrupt images, which are evaluated as the mean grey.
        batch: Rows at a time; 0 for 64 a device.

    Yields:
        Ids, labels of the dataset, and outputs of each batch, on the host and without padding.

    Raises:
        ConfigError: ``batch`` is negative.
        DataError: An image cannot be read, or too many are corrupt.
    """
    rows, threads = batch_size(len(dataset), classifier.mesh.size, batch), data.cores()
    piece = min(data.PIECE, _MEMORY_BYTES // (2 * threads))  # one in work, one waiting per thread
    reading = data.Reading(threads=threads, memory_bytes=_MEMORY_BYTES, piece_bytes=piece)
    if settings.rectangular:
        views = data.rectangular_views(dataset, reading, settings.side)
    else:
        views = data.square_views(dataset, settings.side)
    batches = data.evaluation_batches(
        dataset,
        batch=rows,
        rows=(0, rows),
        reading=reading,
        views=views,
        unreadable=unreadable,
    )
    ids = (view.ids[at : at + rows] for view in views for at in range(0, len(view.ids), rows))
    pending: collections.deque = collections.deque()

    def oldest() -> tuple[np.ndarray, np.ndarray, Outputs]:
        chosen, labels, outputs = pending.popleft()
        labels, outputs = jax.device_get((labels, outputs))
        return chosen, labels[: len(chosen)], Outputs(*(x[: len(chosen)] for x in outputs))

    with contextlib.closing(on_devices(classifier.mesh, batches)) as sent:
        for chosen, fed in zip(ids, sent, strict=True):
            pending.append((chosen, fed.labels, classifier(fed)))
            if len(pending) >= IN_FLIGHT:  # bounds the batches that wait on the devices
                yield oldest()
    while pending:
        yield oldest()


def evaluate(
    classifier: Classifier,
    dataset: data.Dataset,
    settings: Settings,
    unreadable: data.Unreadable,
    classes: np.ndarray,
    *,
    batch: int = 0,
    advance: Callable[[int], None] = lambda images: None,
) -> Outcomes:
    """Return the outcomes of a complete split; arguments as for `batch_outputs`.

    Args:
        classifier: The network.
        dataset: The images.
        settings: How they are prepared.
        unreadable: Counts corrupt images.
        classes: int32 (labels of the dataset,): the class of each label.
        batch: Rows at a time; 0 for 64 a device.
        advance: Called after each batch with its number of images.

    Raises:
        DataError: An image cannot be read, or too many are corrupt.
    """
    ids, labels, outputs = [], [], []
    for chosen, own, kept in batch_outputs(classifier, dataset, settings, unreadable, batch=batch):
        ids.append(chosen)
        labels.append(classes[own].astype(np.int32))
        outputs.append(kept)
        advance(len(chosen))
    order = np.argsort(np.concatenate(ids))  # rectangular images come in the order of their shapes
    joined = (np.concatenate(field)[order] for field in zip(*outputs, strict=True))
    return Outcomes(np.concatenate(labels)[order], Outputs(*joined))


def predict(
    classifier: Classifier,
    files: Sequence[Path],
    settings: Settings,
    classes: tuple[str, ...],
    *,
    batch: int = 0,
) -> Generator[dict[str, Any]]:
    """Predict each file, in order, as soon as its batch is computed.

    Args:
        classifier: Keeps as many classes as are to be named.
        files: At least one; decoded by content, whatever their suffix.
        settings: How they are prepared.
        classes: Names of the outputs.
        batch: Images at a time; 0 for 64 a device.

    Yields:
        ``{"file": …, "top": [{"class": …, "label": …, "probability": …}, …]}``, most probable
        first, or ``{"file": …, "error": …}``.
    """
    source, channels = ImageFiles(files, classes), len(settings.mean)
    dataset = data.Dataset(source, settings.options)
    dataset = dataset.with_channels(channels, settings.mean, settings.std)
    unreadable = data.Unreadable("files", len(source), share=1.0)
    ready: dict[int, dict[str, Any]] = {}
    following = 0
    for ids, _, outputs in batch_outputs(classifier, dataset, settings, unreadable, batch=batch):
        errors = {each.example: each.reason for each in unreadable.found} | source.failed
        for row, example in enumerate(ids.tolist()):
            guesses = zip(outputs.top[row], outputs.probabilities[row], strict=True)
            top = [
                {"class": classes[label], "label": int(label), "probability": float(probability)}
                for label, probability in guesses
                if label >= 0
            ]
            error = errors.get(example) or ("" if top else "the logits are not finite")
            result = {"error": error} if error else {"top": top}
            ready[example] = {"file": source.where(example), **result}
        while following in ready:  # rectangular images are computed in the order of their shapes
            yield ready.pop(following)
            following += 1
