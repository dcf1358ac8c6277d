"""Protocols of data sources, and what several sources need to open their files."""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from largebatch.errors import DataError

Split = Literal["train", "validation"]
SPLITS = {"train": ("train",), "validation": ("validation", "val", "valid", "test")}
"""What a dataset may call each split, in any letter case; `test` where there is no other."""


@dataclass(frozen=True)
class SourceOptions:
    """What a source must deliver; each source states which of these options it uses.

    Attributes:
        image_size: Pixels a side; 0 is the source's own.
        examples: Number of training examples, for both splits; 0 is the source's own.
        classes: Number of classes; 0 is the source's own.
        data_dir: Directory of TFDS's datasets; empty is TFDS's default.
        crop_area: Least and greatest share of an image's area in a training crop.
        crop_ratio: Least and greatest width / height of that crop.
        evaluation_crop: Share of the shorter side in the central crop of evaluation.
        resampling: `linear` or `antialias`, see `images.resize`.
        validation_split: Share of each class of a folder that is its validation split; 0: none.
        whole: Whether class folders without splits are the validation split.
        cache_bytes: Bytes that it may hold; 0: none are kept.
        sequential: Whether each example is read once, in order, to be copied: checksums of records
            are checked, and formats without fast random access are accepted.
    """

    image_size: int = 0
    examples: int = 0
    classes: int = 0
    data_dir: str = ""
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    evaluation_crop: float = 0.875
    resampling: str = "linear"
    validation_split: float = 0.0
    whole: bool = False
    cache_bytes: int = 0
    sequential: bool = False


class Source(Protocol):
    """One split of a labelled image dataset, read by example index.

    `read` is called from several threads at once.

    Attributes:
        name: The specification it was opened by.
        classes: Name of each label.
        image_shape: (H, W, C) of the images that `read` delivers.
        mean: Mean of each channel over the training split, in 0..255.
        std: Standard deviation of each channel over the training split, in 0..255.
    """

    name: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read examples as evaluation sees them; the same ids give the same bytes.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            images: uint8 (b, H, W, C).
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def describe(self) -> str:
        """Return one line about what was found."""
        ...


@runtime_checkable
class CroppingSource(Source, Protocol):
    """A source with images larger than `image_shape`, of which training takes random crops.

    The source crops, since a crop chosen before decoding saves most of the decoder's work.
    """

    def read_crops(
        self, ids: np.ndarray, *, seed: int, epochs: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read examples as training sees them, before `Augment`; replaces `read` in training.

        Args:
            ids: int64 (b,), in [0, len).
            seed: Seed of the run.
            epochs: int64 (b,), the epoch of each example; the crop depends on (seed, epoch, id).
            out: uint8 (b, H, W, C), contiguous, destination of the images; None allocates it.

        Returns:
            As `read`.

        Raises:
            DataError: An example cannot be read.
        """
        ...


@runtime_checkable
class RectangularSource(Source, Protocol):
    """A source that can be evaluated at any height and width."""

    def sizes(self, ids: np.ndarray) -> np.ndarray:
        """Return the heights and widths of the stored images.

        Args:
            ids: int64 (b,), in [0, len).

        Returns:
            int64 (b, 2).

        Raises:
            DataError: An example cannot be read.
        """
        ...

    def read_centres(
        self, ids: np.ndarray, shape: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read the central crop of each image, like `read`, at another height and width.

        Args:
            ids: int64 (b,), in [0, len).
            shape: Height and width.

        Returns:
            images: uint8 (b, *shape, 3).
            labels: int32 (b,).

        Raises:
            DataError: An example cannot be read.
        """
        ...


def own_name(names: Iterable[str], split: str, where: str) -> str | None:
    """Return which of some names is that of a split; None: there is none.

    Args:
        names: Splits of a dataset, as it calls them.
        split: A key of `SPLITS`.
        where: The directory, for the message.

    Raises:
        DataError: Several could be meant.
    """
    found = [name for name in names if name.lower() in SPLITS[split]]
    # A test split beside a validation split is not used.
    found = [name for name in found if name.lower() != "test"] or found
    if len(found) > 1:
        raise DataError(
            f"{where}: expected one split for {split}, got {', '.join(sorted(found))}; keep one of "
            "them there"
        )
    return found[0] if found else None


def check_class_names(where: str, classes: Sequence[str]) -> None:
    """Raise a DataError for a class name that a line of a labels file cannot hold.

    Args:
        where: The dataset, for the message.
        classes: Name of each label.
    """
    for label, name in enumerate(classes):
        if not isinstance(name, str):
            raise DataError(
                f"{where}: expected class names that are texts, got {name!r} for label {label}; "
                "return str"
            )
        kinds = {unicodedata.category(character) for character in name}
        if "Cs" in kinds:  # of bytes that are not UTF-8
            problem = "not UTF-8"
        elif not name.strip():
            problem = "empty"
        elif name != name.strip():
            problem = "with a space at an end"
        elif kinds & {"Cc", "Zl", "Zp"}:
            problem = "with a line break or a control character"
        else:
            continue
        raise DataError(
            f"{where}: expected class names that are a line of text each, got {name!a} for label "
            f"{label}, {problem}; rename the class"
        )


def check_sizes(name: str, options: SourceOptions, **own: int) -> None:
    """Raise a DataError if options ask for other sizes than a dataset has.

    Args:
        name: The dataset, for the message.
        options: The options.
        **own: The dataset's sizes by option.
    """
    for field, has in own.items():
        asked = getattr(options, field)
        if asked not in (0, has):
            raise DataError(
                f"data.{field}: expected 0 or {has} for {name}, got {asked}; use one of these",
                unused=(f"data.{field}",),
            )


def differing(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return in words how two lists of class names differ: lengths and first difference."""
    same = len(ours) == len(theirs)
    summary = "classes of other names" if same else f"{len(ours):,} and {len(theirs):,} classes"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"{summary}, number {number} {one!r} and {other!r}"
    return summary


@runtime_checkable
class Marked(Protocol):
    """A source that can be distinguished from another one with the same sizes and classes."""

    def marks(self) -> Iterable[bytes]:
        """Return names, lengths or checksums of its files in order, without the directory."""
        ...


def identity(source: Source) -> str:
    """Return a short hash of all that is known of a split without reading its images.

    It covers the number of examples, the class names and `marks`: for `folder:` the file names, for
    ArrayRecord files their names and lengths. The directory is not a part of it. Takes 0.1 s for
    the 1.3 million file names of ImageNet.

    Returns:
        16 hexadecimal digits (BLAKE2b).
    """
    digest = hashlib.blake2b(digest_size=8)
    marks = source.marks() if isinstance(source, Marked) else ()
    names = (name.encode("utf-8", "surrogateescape") for name in source.classes)
    for part in (str(len(source)).encode(), *names, b"", *marks):
        digest.update(len(part).to_bytes(8, "little"))  # different lists give different bytes
        digest.update(part)
    return digest.hexdigest()


def identities(sources: Mapping[str, Source]) -> dict[str, str]:
    """Return the `identity` of each source."""
    return {name: identity(source) for name, source in sources.items()}


def class_counts(source: Source) -> tuple[int, ...] | None:
    """Return the number of examples of each class; None if that takes reading the examples."""
    counts = getattr(source, "class_counts", lambda: None)()
    return None if counts is None else tuple(counts)
