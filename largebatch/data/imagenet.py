"""Names, classes and counts of ImageNet (ILSVRC2012), as TFDS defines them."""

import functools
import importlib.resources
import re
from collections import Counter
from collections.abc import Sequence

from largebatch.errors import DataError

SPLITS = ("train", "validation")
TARS = {"train": "ILSVRC2012_img_train.tar", "validation": "ILSVRC2012_img_val.tar"}
EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# Least and greatest number of images of a class (Russakovsky et al. 2015, table 2).
PER_CLASS = {"train": (732, 1300), "validation": (50, 50)}

_IMAGES = {
    "train": re.compile(r"(n[0-9]{8})_[0-9]{1,8}\.JPEG"),
    "validation": re.compile(r"ILSVRC2012_val_([0-9]{8})\.JPEG"),
}
_EXAMPLE = {"train": "n01440764_10026.JPEG", "validation": "ILSVRC2012_val_00000001.JPEG"}


@functools.cache
def classes() -> tuple[str, ...]:
    """Return the 1,000 classes in TFDS's order, which numbers the labels."""
    return tuple(_lines("labels.txt"))


@functools.cache
def repaired() -> frozenset[str]:
    """Return the names of the images that TFDS re-encodes: a PNG and 22 CMYK JPEGs."""
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as builder

    return frozenset(builder.PNG_IMAGES) | frozenset(builder.CMYK_IMAGES)


def tar_class(name: str, where: str) -> str:
    """Return the class of a tar such as `n01440764.tar`; raise a DataError if there is none."""
    found = name.removesuffix(".tar")
    if found not in _labels() or found == name:
        raise DataError(
            f"{where}: expected nXXXXXXXX.tar of ImageNet only, got {name!a}; remove it"
        )
    return found


def is_validation(name: str) -> bool:
    """Return whether a name is that of a validation image."""
    return _IMAGES["validation"].fullmatch(name) is not None


def image_label(name: str, where: str, kinds: Sequence[str] = SPLITS, folder: str = "") -> int:
    """Return the label of an image from its name.

    Args:
        name: Such as `n01440764_10026.JPEG` (the class) or `ILSVRC2012_val_00000001.JPEG` (TFDS
            lists the class of each number).
        where: First word of the error message.
        kinds: Names accepted: those of the training split, the validation split, or both. Subsets
            such as Imagenette mix them.
        folder: Class of the folder or tar that holds the image; '' does not check it.

    Raises:
        DataError: The name has another form, or the image is of another class.
    """
    for kind in kinds:
        match = _IMAGES[kind].fullmatch(name)
        if match is None or (kind == "validation" and not 1 <= int(match[1]) <= EXAMPLES[kind]):
            continue
        own = match[1] if kind == "train" else _validation_classes()[int(match[1]) - 1]
        if own in _labels() and folder in ("", own):
            return _labels()[own]
        raise DataError(
            f"{where}: expected an image of class {folder or 'n01440764, …'}, got {name}, which is "
            f"of {own}; move it"
        )
    examples = " or ".join(_EXAMPLE[kind] for kind in kinds)
    raise DataError(f"{where}: expected names such as {examples}, got {name!a}; remove it")


def check_counts(where: str, split: str, labels: Sequence[int]) -> None:
    """Raise a DataError unless a split has all of ImageNet's images."""
    counts = Counter(labels)
    least, most = PER_CLASS[split]
    if len(labels) != EXAMPLES[split]:
        wrong = [f"{EXAMPLES[split]:,} {split} images, got {len(labels):,}"]
    else:
        wrong = [
            f"{least:,} to {most:,} images of {name}, got {counts[label]:,}"
            for label, name in enumerate(classes())
            if not least <= counts[label] <= most
        ]
    if wrong:
        raise DataError(
            f"{where}: expected {wrong[0]}; get what is missing, or use --allow_partial"
        )


@functools.cache
def _labels() -> dict[str, int]:
    return {name: label for label, name in enumerate(classes())}


@functools.cache
def _validation_classes() -> tuple[str, ...]:
    """Class of each validation image: line i of TFDS's file is image i + 1."""
    return tuple(_lines("validation_labels.txt"))


def _lines(file: str) -> list[str]:
    folder = importlib.resources.files("tensorflow_datasets") / "datasets" / "imagenet2012"
    return (folder / file).read_text(encoding="utf-8").split()
