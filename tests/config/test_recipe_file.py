"""Which files are taken for a recipe: it is a program, and is run."""

import os

import pytest

from largebatch.config.load import load
from largebatch.config.recipe_file import execute
from largebatch.errors import ConfigError

RECIPE = """
from pathlib import Path

from largebatch.config import default_config

Path({trace!r}).touch()


def get_config():
    return default_config()
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe that leaves a trace when it is run."""
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(trace=str(tmp_path / "trace")))
    return path


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_local_file_or_a_link_to_one_is_run(recipe, tmp_path):
    execute(recipe)
    assert (tmp_path / "trace").exists()
    (tmp_path / "link.py").symlink_to(recipe)
    load(str(tmp_path / "link.py"))


@pytest.mark.parametrize(
    "where",
    [
        "http://example.org/recipe.py",
        "https://example.org/recipe.py",
        "gs://bucket/recipe.py",
        "s3://bucket/recipe.py",
        "file:///{folder}/recipe.py",
    ],
)
def test_nothing_is_fetched(recipe, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    # A folder of that name does not make it a file of this machine.
    local = tmp_path / where.format(folder="x")
    local.parent.mkdir(parents=True)
    local.write_text(recipe.read_text())
    said = refusal(where.format(folder="x"))
    assert "is no file of this machine, and a recipe is run: get it, read it, and give a" in said
    assert not (tmp_path / "trace").exists()


def test_what_is_no_python_file_is_told_apart(recipe, tmp_path):
    form = "give a local Python file with get_config()"
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "away.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "round.py").symlink_to(tmp_path / "round.py")
    (tmp_path / "null.py").symlink_to("/dev/null")
    recipe.rename(tmp_path / "recipe.txt")
    for name, what in (
        ("folder.py", "is a folder"),
        ("pipe.py", "is a pipe or a device"),
        ("null.py", "is a pipe or a device"),
        ("away.py", f"is a link to {tmp_path}/gone.py, which is not there"),
        ("round.py", f"is a link to {tmp_path}/round.py, which is not there"),
        ("recipe.txt", "is a file without the suffix .py"),
        (".", "is a folder without the suffix .py"),
    ):
        path = tmp_path / name
        assert refusal(path) == f"{path} {what}; {form}"
    for path in ("/dev/stdin", "/dev/zero"):
        assert refusal(path).startswith(f"{path} is a pipe or a device without the suffix .py")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("path", ["", "-", "recipe\0.py", "no/such/recipe.py"])
def test_what_is_not_there_is_told(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refusal(path)
    assert "no recipe file" in said or "is a folder" in said


def test_a_recipe_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "recipe.py"
    for data in (b"\xff\xfe\x00", b"\0" * 100, b"\x7fELF" + bytes(range(256))):
        path.write_bytes(data)
        assert refusal(path).startswith(str(path))
    path.write_text("x = 1\n")
    path.chmod(0)
    said = refusal(path)  # root reads it all the same
    assert "PermissionError" in said or "has no get_config()" in said
