"""Which output of a network means which class of a data set: matched by name where both have names.

Label i of one set is rarely label i of another: TFDS numbers the same ten classes of Imagenette
otherwise than ImageNet does, and a folder by the names of its own folders.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from largebatch.data.prepare.names import classes as imagenet_classes
from largebatch.errors import DataError

How = Literal["names", "numbers", "imagenet"]

_WORDNET = re.compile(r"n[0-9]{8}")
_NAMED = 3  # of those that a message counts


@dataclasses.dataclass(frozen=True, eq=False)
class Matching:
    """The classes of a data set among the outputs of a network.

    Attributes:
        classes: Names of the outputs.
        outputs: int32 (classes of the set,): the output that each label of the set is.
        note: How they were matched, for people; '' where both have the same names in one order.
    """

    classes: tuple[str, ...]
    outputs: np.ndarray
    note: str

    @property
    def among_more(self) -> bool:
        """Whether the network knows classes that the set has not."""
        return len(self.outputs) < len(self.classes)

    def among_own(self) -> "Matching":
        """The same where only the outputs of the set's own classes are looked at."""
        count = len(self.outputs)
        return Matching(
            tuple(self.classes[output] for output in self.outputs),
            np.arange(count, dtype=np.int32),
            f"{self.note}; only their {count:,} outputs are looked at".removeprefix("; "),
        )


def class_names(names: Sequence[str], outputs: int) -> tuple[tuple[str, ...], str]:
    """Names of a network's outputs, for people.

    Args:
        names: As the file has them; () for none.
        outputs: How many there are.

    Returns:
        Names, and what was assumed: 1,000 outputs without names are ImageNet's classes, by WordNet
        id in their usual order; any other number are called by their numbers.
    """
    if names:
        return tuple(names), ""
    if outputs == len(imagenet_classes()):
        return imagenet_classes(), "the weights name no classes; taken for ImageNet's 1,000"
    return _numbers(outputs), "the weights name no classes; these are numbers of labels"


def match(
    names: Sequence[str],
    outputs: int,
    classes: Sequence[str],
    source: str,
    how: How = "names",
) -> Matching:
    """Finds the classes of a data set among the outputs of a network.

    Args:
        names: Of the outputs; () for none.
        outputs: How many there are.
        classes: Of the data set, in the order of its labels.
        source: The data set, for messages.
        how: `names`; `numbers`, label i is output i; or `imagenet`, output i is the i-th of
            ImageNet's 1,000 WordNet ids, whatever the file calls it.

    Raises:
        DataError: A class of the set is no output, or is several.
    """
    names, classes = tuple(names), tuple(classes)
    if how == "imagenet":
        if outputs != len(imagenet_classes()):
            raise DataError(
                f"--match=imagenet is for weights of 1,000 classes, these have {outputs:,}; use "
                "--match=names or numbers"
            )
        names = imagenet_classes()
    if how == "numbers" or (how == "names" and not names and not _is_imagenet(outputs, classes)):
        return _by_number(names, outputs, classes, source)
    if not names:
        found = _by_name(imagenet_classes(), classes, source)
        note = "the weights name no classes; taken for ImageNet's 1,000 in their usual order"
        return dataclasses.replace(found, note=f"{note}; {found.note}".removesuffix("; "))
    if names != classes and classes == _numbers(len(classes)):  # the set has no names
        return _by_number(names, outputs, classes, source)
    return _by_name(names, classes, source)


def _by_name(names: tuple[str, ...], classes: tuple[str, ...], source: str) -> Matching:
    if names == classes:
        return Matching(names, np.arange(len(names), dtype=np.int32), "")
    places = {name: output for output, name in enumerate(names)}
    unknown = [name for name in classes if name not in places]
    if unknown:
        remedy = "--match=numbers if label i means the same in both"
        if _is_imagenet(len(names), classes):
            remedy = "--match=imagenet if these are ImageNet's classes in their usual order"
        raise DataError(
            f"{len(unknown):,} of the {len(classes):,} classes of {source} are not among the "
            f"{len(names):,} of the weights: {_few(unknown)} (the weights have {_few(names)}); "
            f"give data of the same classes, or {remedy}"
        )
    twice = sorted({name for name in classes if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{len(twice):,} classes of {source} are several of the weights: {_few(twice)}; use "
            "--match=numbers if label i means the same in both"
        )
    outputs = np.array([places[name] for name in classes], np.int32)
    said = f"{len(classes):,} classes of {source} found by name"
    if len(classes) < len(names):
        return Matching(names, outputs, f"{said} among the {len(names):,} of the weights")
    return Matching(names, outputs, f"{said}, in another order than the weights'")


def _by_number(
    names: tuple[str, ...], outputs: int, classes: tuple[str, ...], source: str
) -> Matching:
    if len(classes) != outputs:
        which = "without names, " if not names else ""
        raise DataError(
            f"{source} has {len(classes):,} classes, the weights have {outputs:,}, {which}so labels"
            " cannot be matched by number; give data of as many classes, or name them in both"
        )
    same = not names or names == classes
    return Matching(
        classes if same or classes != _numbers(outputs) else names,
        np.arange(outputs, dtype=np.int32),
        "" if names == classes else "classes matched by number: label i is output i",
    )


def _is_imagenet(outputs: int, classes: Sequence[str]) -> bool:
    """Whether a network may be one of ImageNet and a set one of its classes."""
    wordnet = all(_WORDNET.fullmatch(name) for name in classes)
    return wordnet and outputs == len(imagenet_classes())


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
