"""Names that options select, and users' own objects."""

import sys

import pytest

from largebatch.errors import ConfigError
from largebatch.registry import add_directory, check, imported, resolve

KINDS = {"greatest": "builtins:max", "lazy": "math:sqrt"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory whose modules can be imported, and are forgotten again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "own_kinds.py").write_text(
        "import functools\nclass Nets:\n    def small(): return 3\n"
    )
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    add_directory(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_object_is_found_by_name_or_reference(own):
    assert resolve("greatest", KINDS, "model.name") is max
    assert resolve("lazy", KINDS, "model.name")(9) == 3
    assert resolve("own_kinds:Nets.small", KINDS, "model.name")() == 3


def test_a_reference_is_refused_where_users_have_no_objects_of_their_own():
    check("own:thing", KINDS, "model.name")
    with pytest.raises(ConfigError, match="known: greatest, lazy"):
        check("own:thing", KINDS, "comm.wire", own="")
    with pytest.raises(ConfigError, match=r"model\.name='greatst'.*'greatest'"):
        check("greatst", KINDS, "model.name")


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("own_kinds:Nets.smal", "small"),
        ("own_kinds:xyz", "known: Nets$"),  # not what it imports
        ("own_kinds_absent:x", "PYTHONPATH"),
        ("own_broken:x", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_imported_is_one_line(own, reference, word):
    with pytest.raises(ConfigError, match=word) as caught:
        imported(reference, "model.name")
    assert reference in str(caught.value)
    assert "\n" not in str(caught.value)
