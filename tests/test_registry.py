"""Names that options select, and users' own objects."""

import sys

import pytest

from largebatch.errors import ConfigError
from largebatch.registry import Registry, add_directory, imported


@pytest.fixture
def kinds():
    return Registry("model.name", {"plain": max, "lazy": "math:sqrt"})


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory whose modules can be imported, and are forgotten again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "own_kinds.py").write_text("class Nets:\n    def small(): return 3\n")
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    add_directory(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_entries_are_found_by_name_and_imported_late(kinds):
    assert kinds["plain"] is max
    assert kinds["lazy"](9) == 3
    assert list(kinds) == ["plain", "lazy"]
    assert kinds.register("third", min) is min
    assert kinds["third"] is min
    with pytest.raises(ValueError, match="third"):
        kinds.register("third", min)


def test_an_unknown_name_names_the_nearest(kinds):
    with pytest.raises(ConfigError, match=r"model\.name='plane'.*'plain'"):
        kinds["plane"]


def test_a_name_with_another_number_is_not_near():
    named = Registry("model.name", {"resnet50": 1, "resnet152": 2})
    with pytest.raises(ConfigError, match="known: resnet50, resnet152"):
        named["resnet26d"]
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        named["resnt50"]


def test_a_users_own_object_is_imported(kinds, own):
    assert kinds["own_kinds:Nets.small"]() == 3


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("own_kinds:Nets.smal", "small"),
        ("own_kinds:nothing", "known: Nets$"),  # not what it imports
        ("own_kinds_absent:x", "PYTHONPATH"),
        ("own_broken:x", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_imported_is_one_line(own, reference, word):
    with pytest.raises(ConfigError, match=word) as caught:
        imported(reference, "model.name")
    assert reference in str(caught.value)
    assert "\n" not in str(caught.value)
