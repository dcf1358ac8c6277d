"""What ImageNet is called and how much there is of it, as TFDS has it."""

import functools
import importlib.resources
import re
from collections.abc import Sequence

from largebatch.errors import DataError

SPLITS = ("train", "validation")
TARS = {"train": "ILSVRC2012_img_train.tar", "validation": "ILSVRC2012_img_val.tar"}
# As image-net.org states them beside the downloads.
MD5 = {
    "train": "1d675b47d978889d74fa0da5fadfb00e",
    "validation": "29b22e2961454d5413ddabcf34fc5622",
}
EXAMPLES = {"train": 1_281_167, "validation": 50_000}
# Fewest and most images of a class (Russakovsky et al. 2015, table 2).
PER_CLASS = {"train": (732, 1300), "validation": (50, 50)}

_CLASS = re.compile(r"n[0-9]{8}")
_CLASS_TAR = re.compile(r"(n[0-9]{8})\.tar")
_IMAGES = {
    "train": re.compile(r"(n[0-9]{8})_[0-9]{1,8}\.JPEG"),
    "validation": re.compile(r"ILSVRC2012_val_([0-9]{8})\.JPEG"),
}
_SUCH_AS = {"train": "n01440764_10026.JPEG", "validation": "ILSVRC2012_val_00000001.JPEG"}


@functools.cache
def classes() -> tuple[str, ...]:
    """The 1,000 classes in TFDS's order, which numbers the labels."""
    return tuple(_lines("labels.txt"))


@functools.cache
def _label_of_class() -> dict[str, int]:
    return {name: label for label, name in enumerate(classes())}


@functools.cache
def _validation_labels() -> tuple[int, ...]:
    """Label of each validation image; line i of TFDS's file is image i + 1."""
    return tuple(_label_of_class()[name] for name in _lines("validation_labels.txt"))


@functools.cache
def repaired() -> frozenset[str]:
    """Names of the images that TFDS re-encodes: a PNG and 22 CMYK JPEGs."""
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as builder

    return frozenset(builder.PNG_IMAGES) | frozenset(builder.CMYK_IMAGES)


def class_label(name: str, where: str) -> int:
    """The label of a class.

    Args:
        name: Such as `n01440764`.
        where: Names the place for a message.

    Raises:
        DataError: It is none of the 1,000.
    """
    if not _CLASS.fullmatch(name) or name not in _label_of_class():
        raise DataError(
            f"{where}: {name!r} is none of the 1,000 classes of ImageNet (such as n01440764); "
            "remove it"
        )
    return _label_of_class()[name]


def tar_label(name: str, where: str) -> int:
    """The label of a class tar such as `n01440764.tar`; raises as `class_label`."""
    match = _CLASS_TAR.fullmatch(name)
    if match is None:
        raise DataError(f"{where}: unexpected member {name!r}; expected nXXXXXXXX.tar and no other")
    return class_label(match[1], where)


def image_label(name: str, where: str, kinds: Sequence[str] = SPLITS) -> int:
    """The label of an image, which its name tells.

    Args:
        name: Such as `n01440764_10026.JPEG`, or `ILSVRC2012_val_00000001.JPEG`: the number counts.
        where: Names the place for a message.
        kinds: Whether the first, the second or both are accepted.

    Raises:
        DataError: It is no such name.
    """
    for kind in kinds:
        match = _IMAGES[kind].fullmatch(name)
        if match and kind == "train":
            return class_label(match[1], where)
        if match and 1 <= int(match[1]) <= EXAMPLES[kind]:
            return _validation_labels()[int(match[1]) - 1]
    known = " or ".join(_SUCH_AS[kind] for kind in kinds)
    raise DataError(f"{where}: unexpected name {name!r}; names are such as {known}, and no others")


def image_label_in_class(name: str, label: int, where: str, kinds: Sequence[str] = SPLITS) -> int:
    """The label of an image that lies with its class; as `image_label`.

    Args:
        name: As there.
        label: Of the class that it lies with.
        where: As there.
        kinds: As there; subsets of ImageNet such as Imagenette mix both.

    Raises:
        DataError: It is no such name, or of another class.
    """
    own = image_label(name, where, kinds)
    if own != label:
        raise DataError(f"{where}: {name} is of class {classes()[own]}, not {classes()[label]}")
    return label


def _lines(file: str) -> list[str]:
    folder = importlib.resources.files("tensorflow_datasets") / "datasets" / "imagenet2012"
    return (folder / file).read_text(encoding="utf-8").split()
