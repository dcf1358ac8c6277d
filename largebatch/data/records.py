"""Labelled images as their files hold them: encoded, of any size, read by example index."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np


class Records(Protocol):
    """One split of a labelled set of encoded images.

    Reading is thread-safe, and an instance can be pickled into a worker process, which opens its
    files anew.

    Attributes:
        name: The specification it was opened by.
        classes: Name of each label.
    """

    name: str
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Examples in the split."""
        ...

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """Reads encoded images and their labels.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            images: b files' contents, as stored.
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def where(self, example: int) -> str:
        """Names the file, or the record of a file, that holds an example, for messages."""
        ...

    def marks(self) -> Iterable[bytes]:
        """As of `identity.Marked.marks`."""
        ...

    def describe(self) -> str:
        """One line that says what was found."""
        ...
