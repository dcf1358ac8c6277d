"""Matching the classes of weights and data: same, reordered, subsets, without names, and wrong."""

import pytest

from largebatch.data.prepare.names import classes as imagenet_classes
from largebatch.errors import DataError
from largebatch.weights.evaluation.class_names import class_names, match

ANIMALS = ("cat", "dog", "eel")


def test_the_same_names_need_no_word():
    found = match(ANIMALS, 3, ANIMALS, "folder:x")
    assert (found.classes, found.outputs.tolist(), found.note) == (ANIMALS, [0, 1, 2], "")
    assert not found.among_more


def test_another_order_is_matched_by_name():
    found = match(ANIMALS, 3, ("eel", "cat", "dog"), "folder:x")
    assert found.outputs.tolist() == [2, 0, 1]
    assert found.classes == ANIMALS
    assert "3 classes of folder:x found by name, in another order" in found.note


def test_a_subset_is_evaluated_among_all_or_among_its_own():
    found = match(ANIMALS, 3, ("eel", "dog"), "folder:x")
    assert (found.outputs.tolist(), found.among_more) == ([2, 1], True)
    assert found.note == "2 classes of folder:x found by name among the 3 of the weights"
    own = found.among_own()
    assert (own.classes, own.outputs.tolist()) == (("eel", "dog"), [0, 1])
    assert own.note.endswith("only their 2 outputs are looked at")


def test_imagenets_ids_are_known_to_weights_without_names():
    some = (imagenet_classes()[7], imagenet_classes()[0])
    found = match((), 1000, some, "tfds:imagenette")
    assert found.outputs.tolist() == [7, 0]
    assert found.classes == imagenet_classes()
    assert "taken for ImageNet's 1,000" in found.note
    assert "found by name among the 1,000" in found.note
    whole = match((), 1000, imagenet_classes(), "tfds:imagenet2012")
    assert whole.outputs.tolist() == list(range(1000))
    assert (
        whole.note == "the weights name no classes; taken for ImageNet's 1,000 in their usual order"
    )


def test_names_in_words_want_to_be_told_that_they_are_imagenets():
    words, some = tuple(f"thing {i}" for i in range(1000)), imagenet_classes()[5:7]
    with pytest.raises(
        DataError,
        match=r"^2 of the 2 classes of folder:x are not among the 1,000 of the weights: "
        r"'n01496331', .*\(the weights have 'thing 0', 'thing 1', 'thing 2' and 997 more\); .*"
        "--match=imagenet if",
    ):
        match(words, 1000, some, "folder:x")
    assert match(words, 1000, some, "folder:x", "imagenet").outputs.tolist() == [5, 6]
    with pytest.raises(DataError, match=r"weights of 1,000 classes, these have 3"):
        match(ANIMALS, 3, some, "folder:x", "imagenet")


def test_numbers_where_one_side_has_no_names():
    for names, classes in ((ANIMALS, ("0", "1", "2")), ((), ANIMALS)):
        found = match(names, 3, classes, "arrayrecord:x")
        assert found.outputs.tolist() == [0, 1, 2]
        assert found.classes == ANIMALS
        assert found.note == "classes matched by number: label i is output i"
    with pytest.raises(DataError, match=r"^folder:x has 2 classes, the weights have 3, without "):
        match((), 3, ("cat", "dog"), "folder:x")
    with pytest.raises(DataError, match=r"^folder:x has 2 classes, the weights have 3, so labels"):
        match(ANIMALS, 3, ("cat", "dog"), "folder:x", "numbers")


def test_other_names_are_an_error_unless_numbers_are_meant():
    with pytest.raises(
        DataError, match=r"^1 of the 3 classes .*: 'fox' .*--match=numbers if label"
    ):
        match(ANIMALS, 3, ("cat", "dog", "fox"), "folder:x")
    found = match(ANIMALS, 3, ("cat", "dog", "fox"), "folder:x", "numbers")
    assert found.outputs.tolist() == [0, 1, 2]
    assert found.classes == ("cat", "dog", "fox")
    with pytest.raises(DataError, match=r"^1 classes of folder:x are several .*'crane'"):
        match(("crane", "dog", "crane"), 3, ("crane", "dog"), "folder:x")


def test_names_for_people():
    assert class_names(ANIMALS, 3) == (ANIMALS, "")
    names, note = class_names((), 1000)
    assert names == imagenet_classes()
    assert "taken for ImageNet's" in note
    assert class_names((), 2)[0] == ("0", "1")
