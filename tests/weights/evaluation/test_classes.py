"""Matching the classes of weights and data: same, reordered, subsets, without names, and wrong."""

import pytest

from largebatch.data.imagenet import classes as imagenet_classes
from largebatch.errors import DataError
from largebatch.weights.evaluation.classes import match, unmatched

ANIMALS = ("cat", "dog", "eel")
SOME = (imagenet_classes()[7], imagenet_classes()[0])
TWELVE = tuple(map(str, range(12)))
PADDED = tuple(f"{number:02}" for number in range(12))
WORDS = tuple(f"thing {i}" for i in range(1000))


@pytest.mark.parametrize(
    ("names", "outputs", "data", "how", "found", "classes"),
    [
        (ANIMALS, 3, ANIMALS, "names", [0, 1, 2], ANIMALS),
        (ANIMALS, 3, ("eel", "cat", "dog"), "names", [2, 0, 1], ANIMALS),
        ((), 1000, SOME, "names", [7, 0], imagenet_classes()),
        (WORDS, 1000, SOME, "imagenet", [7, 0], imagenet_classes()),
        (ANIMALS, 3, ("0", "1", "2"), "names", [0, 1, 2], ANIMALS),
        ((), 3, ANIMALS, "names", [0, 1, 2], ANIMALS),
        (ANIMALS, 3, ("cat", "dog", "fox"), "numbers", [0, 1, 2], ("cat", "dog", "fox")),
        # Names that are numbers are labels, in any order and padded or not.
        ((), 12, tuple(sorted(TWELVE)), "names", [0, 1, 10, 11, *range(2, 10)], TWELVE),
        ((), 12, PADDED, "names", list(range(12)), TWELVE),
        ((), 10, ("0", "3", "07"), "names", [0, 3, 7], TWELVE[:10]),
        ((), 3, ("1", "2", "3"), "names", [0, 1, 2], TWELVE[:3]),
        (ANIMALS, 3, ("2", "0"), "names", [2, 0], ANIMALS),
        # But weights that have these names know them.
        (tuple(sorted(TWELVE)), 12, PADDED, "names", [0, 1, *range(4, 12), 2, 3], None),
        (("7", "8", "9"), 3, ("9", "7"), "names", [2, 0], None),
    ],
)
def test_matches(names, outputs, data, how, found, classes):
    matching = match(names, outputs, data, "folder:x", how)
    assert matching.outputs.tolist() == found
    assert matching.classes == (names if classes is None else classes)
    assert (matching.note == "") == (names == data)


def test_a_subset_among_its_own_classes():
    own = match(ANIMALS, 3, ("eel", "dog"), "folder:x").restricted()
    assert (own.classes, own.outputs.tolist()) == (("eel", "dog"), [0, 1])
    assert own.columns.tolist() == [2, 1]
    assert own.restricted() is own


@pytest.mark.parametrize(
    ("names", "outputs", "data", "how", "remedy"),
    [
        (WORDS, 1000, SOME, "names", "--match=imagenet"),
        (ANIMALS, 3, SOME, "imagenet", "--match=names or numbers"),
        (ANIMALS, 3, ("cat", "dog"), "numbers", "as many classes"),
        ((), 10, ("0", "3", "10"), "names", "as many classes"),
        (ANIMALS, 3, ("cat", "dog", "fox"), "names", "'fox' .*--match=numbers"),
        (("crane", "dog", "crane"), 3, ("crane", "dog"), "names", "'crane'"),
    ],
)
def test_mismatches(names, outputs, data, how, remedy):
    with pytest.raises(DataError, match=remedy):
        match(names, outputs, data, "folder:x", how)


def test_names_of_outputs_without_names():
    assert unmatched((), 1000).classes == imagenet_classes()
    assert "ImageNet" in unmatched((), 1000).note
    assert unmatched((), 2).classes == ("0", "1")
    assert unmatched(ANIMALS, 3).note == ""
