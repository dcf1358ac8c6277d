"""Names, classes and counts of ImageNet (ILSVRC2012), as TFDS defines them."""

import functools
import importlib.resources
import re
from collections.abc import Sequence

from largebatch.errors import DataError

SPLITS = ("train", "validation")
TARS = {"train": "ILSVRC2012_img_train.tar", "validation": "ILSVRC2012_img_val.tar"}
FOLDERS = {"train": "train", "validation": "val"}
# From the download page of image-net.org.
MD5 = {
    "train": "1d675b47d978889d74fa0da5fadfb00e",
    "validation": "29b22e2961454d5413ddabcf34fc5622",
}
EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# Least and greatest number of images of a class (Russakovsky et al. 2015, table 2).
PER_CLASS = {"train": (732, 1300), "validation": (50, 50)}

_CLASS_TAR = re.compile(r"(n[0-9]{8})\.tar")
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


def class_label(name: str, where: str) -> int:
    """Return the label of a class such as `n01440764`.

    Raises:
        DataError: It is not one of the 1,000 classes; the message begins with ``where``.
    """
    label = _labels().get(name)
    if label is None:
        raise DataError(
            f"{where}: expected one of the 1,000 classes of ImageNet (such as n01440764), got "
            f"{name!r}; remove it"
        )
    return label


def tar_label(name: str, where: str) -> int:
    """Return the label of a class tar such as `n01440764.tar`; see `class_label`."""
    match = _CLASS_TAR.fullmatch(name)
    if match is None:
        raise DataError(f"{where}: unexpected member {name!r}; expected nXXXXXXXX.tar only")
    return class_label(match[1], where)


def image_label(
    name: str, where: str, kinds: Sequence[str] = SPLITS, expected: int | None = None
) -> int:
    """Return the label of an image from its name.

    Args:
        name: Such as `n01440764_10026.JPEG` (the class) or `ILSVRC2012_val_00000001.JPEG` (TFDS
            lists the class of each number).
        where: First word of the error message.
        kinds: Names accepted: those of the training split, the validation split, or both. Subsets
            such as Imagenette mix them.
        expected: Label of the folder or tar that holds the image; None does not check it.

    Raises:
        DataError: The name has another form, or the image is of another class.
    """
    for kind in kinds:
        match = _IMAGES[kind].fullmatch(name)
        if match is None or (kind == "validation" and not 1 <= int(match[1]) <= EXAMPLES[kind]):
            continue
        own = match[1] if kind == "train" else _validation_classes()[int(match[1]) - 1]
        label = class_label(own, where)
        if expected not in (None, label):
            raise DataError(f"{where}: {name} is of class {own}, not {classes()[expected]}")
        return label
    examples = " or ".join(_EXAMPLE[kind] for kind in kinds)
    raise DataError(f"{where}: unexpected name {name!r}; expected names such as {examples}")


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
