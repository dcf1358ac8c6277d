"""TensorFlow as a peer needs it."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from benchmarks.workload import Absent


def need() -> ModuleType:
    """TensorFlow, without devices.

    Raises:
        Absent: It is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise Absent(f"TensorFlow is not installed ({error})") from error
    tf.config.set_visible_devices([], "GPU")
    return tf


def counted(dataset: Any, label: str) -> Iterator[int]:
    """The number of images of each batch of a `tf.data.Dataset` of dictionaries."""
    for batch in dataset.as_numpy_iterator():
        yield len(batch[label])
