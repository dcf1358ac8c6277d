"""Which output of a network is which class of a dataset, matched by name if both have names.

Label i of one dataset is rarely label i of another: TFDS numbers the ten classes of Imagenette
differently from ImageNet, and a folder numbers them by the names of its own folders. Names that are
numbers, such as folders 0 … 999, are labels where the weights do not have these names.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from largebatch.data.folder import label_numbers
from largebatch.data.imagenet import classes as imagenet_classes
from largebatch.errors import DataError
from largebatch.weights.weights import few

How = Literal["names", "numbers", "imagenet"]

_WORDNET = re.compile(r"n[0-9]{8}")
_ASSUMED = "the weights name no classes; taken for ImageNet's 1,000"
_BY_NUMBER = "--match=numbers if label i is the same class in both"


@dataclasses.dataclass(frozen=True, eq=False)
class Matching:
    """The classes of a dataset among the outputs of a network.

    Attributes:
        classes: Names of the outputs.
        outputs: int32 (classes of the dataset,): the class of each label of the dataset.
        note: How they were matched, for the user; '' for the same names in the same order.
        columns: int32 (classes,): the network's output of each class.
    """

    classes: tuple[str, ...]
    outputs: np.ndarray
    note: str
    columns: np.ndarray

    @classmethod
    def of(cls, classes: tuple[str, ...], outputs: Sequence[int], note: str) -> "Matching":
        """Return a matching of which all outputs of the network are classes."""
        columns = np.arange(len(classes), dtype=np.int32)
        return cls(classes, np.asarray(outputs, np.int32), note, columns)

    def restricted(self) -> "Matching":
        """Return the matching for which only the outputs of the dataset's classes are used."""
        count = len(self.outputs)
        if count == len(self.classes):
            return self
        return Matching(
            tuple(self.classes[output] for output in self.outputs),
            np.arange(count, dtype=np.int32),
            f"{self.note}; only their {count:,} outputs are used".removeprefix("; "),
            self.columns[self.outputs],
        )


def unmatched(names: Sequence[str], outputs: int) -> Matching:
    """Return the classes of a network without a dataset; the note says what was assumed.

    1,000 outputs without names are ImageNet's classes, named by WordNet id in their usual order.
    Any other number of outputs without names are named by their numbers.
    """
    note = ""
    if not names:
        is_imagenet = outputs == len(imagenet_classes())
        names = imagenet_classes() if is_imagenet else _numbers(outputs)
        note = (
            _ASSUMED if is_imagenet else "the weights name no classes; the names are label numbers"
        )
    return Matching.of(tuple(names), range(outputs), note)


def match(
    names: Sequence[str], outputs: int, classes: Sequence[str], source: str, how: How = "names"
) -> Matching:
    """Find the classes of a dataset among the outputs of a network.

    Args:
        names: Names of the outputs; () if unknown.
        outputs: Number of outputs.
        classes: Classes of the dataset, in the order of its labels.
        source: The dataset, for messages.
        how: `names`, or numbers where a side has no names; `numbers`, label i is output i; or
            `imagenet`, output i is the i-th of ImageNet's 1,000 WordNet ids, whatever names the
            file has.

    Raises:
        DataError: A class of the dataset is no output, or several.
    """
    names, classes, note = tuple(names), tuple(classes), ""
    imagenet, remedy = imagenet_classes(), _BY_NUMBER
    thousand = outputs == len(imagenet)
    may_be_imagenet = thousand and all(_WORDNET.fullmatch(name) for name in classes)
    if how == "imagenet":
        if not thousand:
            raise DataError(
                f"--match=imagenet: expected weights of 1,000 classes, got {outputs:,}; use "
                "--match=names or numbers"
            )
        names = imagenet
    elif how == "names" and not names and may_be_imagenet:
        names, note = imagenet, f"{_ASSUMED} in their usual order"
    elif how == "numbers" or not names or (label_numbers(classes) and not {*classes} <= {*names}):
        return _by_number(names, outputs, classes, source, how)
    elif may_be_imagenet:
        remedy = "--match=imagenet if these are ImageNet's classes in their usual order"
    found = _by_name(names, classes, source, remedy)
    notes = [each for each in (note, found.note) if each]
    return dataclasses.replace(found, note="; ".join(notes))


def _by_name(
    names: tuple[str, ...], classes: tuple[str, ...], source: str, remedy: str
) -> Matching:
    if names == classes:
        return Matching.of(names, range(len(names)), "")
    places = {name: output for output, name in enumerate(names)}
    if unknown := [name for name in classes if name not in places]:
        raise DataError(
            f"{len(unknown):,} of the {len(classes):,} classes of {source} are not among the "
            f"{len(names):,} of the weights: {few(map(repr, unknown))} (the weights have "
            f"{few(map(repr, names))}); use "
            f"data of the same classes, or {remedy}"
        )
    if twice := sorted({name for name in classes if names.count(name) > 1}):
        raise DataError(
            f"{len(twice):,} classes of {source} match several outputs of the weights: "
            f"{few(map(repr, twice))}; use {_BY_NUMBER}"
        )
    note = f"{len(classes):,} classes of {source} found by name"
    if len(classes) < len(names):
        note += f" among the {len(names):,} of the weights"
    else:
        note += ", in another order than the weights'"
    return Matching.of(names, [places[name] for name in classes], note)


def _by_number(
    names: tuple[str, ...], outputs: int, classes: tuple[str, ...], source: str, how: How
) -> Matching:
    """Match by the numbers that are the classes' names, or else by the numbers of their labels."""
    numbers = label_numbers(classes)
    values = label_numbers(names)
    if numbers and set(numbers) <= set(values):  # such as 7 and 07
        found = [values.index(number) for number in numbers]
        note = f"classes matched by the number that is their name, such as {classes[-1]!r}"
    elif numbers and max(numbers) < outputs and (how == "names" or len(classes) < outputs):
        found = list(numbers)
        note = "classes matched by number: the class named i is output i"
    elif len(classes) == outputs:
        found = list(range(outputs))
        note = "classes matched by number: label i is output i"
    else:
        raise DataError(
            f"{source} has {len(classes):,} classes, the weights have {outputs:,}"
            f"{'' if names else ' without names'}, so labels cannot be matched by number; use data "
            "of as many classes, or weights with names"
        )
    if len(classes) < outputs:
        note += f", {len(classes):,} of {outputs:,}"
    named = (names or _numbers(outputs)) if numbers else classes
    return Matching.of(named, found, "" if names == classes else note)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
