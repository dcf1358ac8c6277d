"""Which files are executed as a recipe, its argument, and its references."""

import os

import pytest

from largebatch.cli import Parser
from largebatch.config.load import load
from largebatch.config.recipe_file import find, label, split_argument
from largebatch.config.recipes import load_recipe
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
    """A recipe that leaves a trace when it is executed."""
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(trace=str(tmp_path / "trace")))
    return path


def refusal(path, overrides=()):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "where",
    [
        "https://example.org/recipe.py",
        "gs://bucket/recipe.py",
        "file:///{folder}/recipe.py",
    ],
)
def test_nothing_is_fetched(recipe, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    # A folder of that name does not make it a file of this machine.
    local = tmp_path / where.format(folder="x")
    local.parent.mkdir(parents=True)
    local.write_text(recipe.read_text())
    refusal(where.format(folder="x"))
    assert not (tmp_path / "trace").exists()


def test_other_files_are_refused(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "broken.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "round.py").symlink_to(tmp_path / "round.py")
    (tmp_path / "null.py").symlink_to("/dev/null")
    recipe.rename(tmp_path / "recipe.txt")
    for name in ("folder", "pipe", "null", "broken", "round"):
        assert f"{name}.py" in refusal(tmp_path / f"{name}.py")
    for path in ("recipe.txt", ".", "", "-", "recipe\0.py", "no/such/recipe.py", "/dev/zero"):
        refusal(path)
    assert not (tmp_path / "trace").exists()


def arguments(path, text):
    path.write_text(f"from largebatch.config import default_config\n\n{text}")
    return path


TAKES = """
def get_config(size="small"):
    config = default_config()
    config.model.width = {"small": 4, "big": 8, "a/b:c=0.5": 16, "": 2}[size]
    return config
"""
NEEDS = "def get_config(size):\n    return default_config()\n"
NONE = "def get_config():\n    return default_config()\n"


def test_an_argument_behind_the_colon_reaches_the_recipe(tmp_path, monkeypatch):
    path = arguments(tmp_path / "x.py", TAKES)
    for text, width in (("", 4), (":big", 8), (":a/b:c=0.5", 16), (":", 2)):
        found = find(f"{path}{text}")
        assert load(found).model.width == load(f"{path}{text}").model.width == width
        assert load_recipe(found).config.model.width == width
    assert label(find(f"{path}:a/b:c=0.5")) == "x_a_b_c=0.5"
    assert label(find(path)) == "x"
    (tmp_path / "configs").mkdir()
    arguments(tmp_path / "configs" / "mine.py", TAKES)
    monkeypatch.chdir(tmp_path)
    flags, others = Parser("x"), ["--config=mine:big", "--config.run.seed=3"]
    flags.add_recipe("recipe")
    parsed, overrides = flags.parse_run(others)
    assert load(parsed.config, overrides).model.width == 8
    arguments(tmp_path / "own.py", TAKES)  # beside the user, not in configs/
    assert load(find("own:big")).model.width == 8
    assert load("own").model.width == 4
    # A file of the whole name is that file.
    arguments(tmp_path / "x.py:big", NONE).rename(tmp_path / "x.py:big.py")
    assert split_argument(tmp_path / "x.py:big.py") == (str(tmp_path / "x.py:big.py"), None)


@pytest.mark.parametrize(
    ("text", "argument", "words"),
    [
        (NEEDS, "", ["get_config(size)", "no argument", "x.py:ARGUMENT"]),
        (NONE, ":big", ["get_config()", "'big'"]),
        (TAKES, ":huge", ["x.py line 6", "KeyError"]),
    ],
)
def test_arguments_that_do_not_fit(tmp_path, text, argument, words):
    path = arguments(tmp_path / "x.py", text)
    said = refusal(find(f"{path}{argument}"))
    for word in words:
        assert word in said


REFERENCES = """
from ml_collections import config_dict


def get_config():
    config = default_config()
    config.batch.images_per_worker = config_dict.placeholder(int)
    config.model.width = config.batch.get_ref("images_per_worker")
    config.optimizer.weight_decay = config.schedule.get_ref("peak") * 1e-4
    config.optimizer.momentum = config_dict.FieldReference(0.8)
    config.schedule.peak = 2.0
    return config
"""


def test_references_follow_overrides(tmp_path):
    path = arguments(tmp_path / "x.py", REFERENCES)
    found = load(path, [("batch.images_per_worker", "16"), ("schedule.peak", "3")])
    assert (found.batch.images_per_worker, found.model.width) == (16, 16)
    assert (found.schedule.peak, found.optimizer.momentum) == (3.0, 0.8)
    assert found.optimizer.weight_decay == pytest.approx(3e-4)
    # What is computed from another can be set by itself.
    own = [("batch.images_per_worker", "16"), ("optimizer.weight_decay", "0.5")]
    found = load(path, own)
    assert (found.schedule.peak, found.optimizer.weight_decay) == (2.0, 0.5)
    assert load_recipe(path, own).config == found


@pytest.mark.parametrize(
    ("overrides", "option"),
    [([], "batch.images_per_worker"), ([("batch.images_per_worker", "many")], "='many'")],
)
def test_a_placeholder_without_a_value_is_named(tmp_path, overrides, option):
    assert option in refusal(arguments(tmp_path / "x.py", REFERENCES), overrides)
