"""The images of a split: what they are called and where their bytes lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from largebatch.data.prepare import names
from largebatch.errors import DataError

_LARGEST = 1 << 28  # bytes of an image; ImageNet's largest is far below, and each is read at once

Row = tuple[str, int, int, int]
"""Name, label, offset in bytes, size in bytes."""


@dataclass(frozen=True)
class Members:
    """Images, as columns: over a million Python objects would take long to make and to send.

    Attributes:
        names: bytes (n,), ASCII.
        labels: int32 (n,).
        offsets: int64 (n,), of the first byte in the file that holds it.
        sizes: int64 (n,), bytes.
    """

    names: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def take(self, ids: np.ndarray | slice) -> "Members":
        """Those at `ids`, in that order; of a slice, views."""
        return Members(*(column[ids] for column in self.columns()))

    def columns(self) -> tuple[np.ndarray, ...]:
        """The attributes, in their order; not copies, which `dataclasses.astuple` would make."""
        return self.names, self.labels, self.offsets, self.sizes

    def rows(self) -> list[Row]:
        """One tuple for each."""
        texts = [name.decode("ascii") for name in self.names.tolist()]
        columns = (self.labels.tolist(), self.offsets.tolist(), self.sizes.tolist())
        return list(zip(texts, *columns, strict=True))


class Archive(Protocol):
    """What holds the images of a split; sent to the processes that read them."""

    def read(self, row: Row) -> bytes:
        """The contents of an image.

        Raises:
            DataError: They cannot be read, or are no longer of that size.
        """
        ...

    def expect(self, rows: Sequence[Row]) -> None:
        """Tells the operating system what will be read next."""
        ...

    def where(self, row: Row) -> str:
        """Names the file that holds an image."""
        ...


def from_rows(rows: Sequence[Row]) -> Members:
    """Puts images into columns."""
    texts, labels, offsets, sizes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Members(
        np.array([text.encode("ascii") for text in texts], "S32"),
        np.array(labels, np.int32),
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
    )


def join(parts: Sequence[Members]) -> Members:
    """One after the other."""
    columns = zip(*(part.columns() for part in parts), strict=True)
    return Members(*(np.concatenate(column) for column in columns))


def check(members: Members, split: str, where: Path, *, partial: bool) -> None:
    """Checks that each name occurs once and, unless told otherwise, that all images are there.

    Args:
        members: Of the split.
        split: `train` or `validation`.
        where: What was read, for messages.
        partial: Whether any number above 0 will do.

    Raises:
        DataError: A name occurs twice, an image is empty or images are missing.
    """
    if not len(members):
        raise DataError(f"{where} holds no images")
    if not members.sizes.all():
        name = members.names[members.sizes.argmin()].decode()
        raise DataError(f"{where}: {name} is empty; get it again")
    if (largest := members.sizes.max()) > _LARGEST:
        name = members.names[members.sizes.argmax()].decode()
        raise DataError(
            f"{where}: {name} has {largest:,} bytes, no picture of ImageNet; get it again"
        )
    unique, counts = np.unique(members.names, return_counts=True)
    if len(unique) < len(members):
        raise DataError(f"{where}: {unique[counts.argmax()].decode()} occurs {counts.max()} times")
    if partial:
        return
    remedy = "get what is missing, or say --allow-partial"
    expected = names.EXAMPLES[split]
    if len(members) != expected:
        raise DataError(
            f"{where} holds {len(members):,} {split} images, not {expected:,}; {remedy}"
        )
    least, most = names.PER_CLASS[split]
    per_class = np.bincount(members.labels, minlength=len(names.classes()))
    for label in np.flatnonzero((per_class < least) | (per_class > most))[:1]:
        raise DataError(
            f"{where} holds {per_class[label]:,} images of class {names.classes()[label]}, "
            f"not {least if least == most else f'{least} to {most:,}'}; {remedy}"
        )
