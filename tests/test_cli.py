"""The command line that all commands share."""

import subprocess
import sys
from pathlib import Path

import pytest

import largebatch
from largebatch.cli import Parser, written
from largebatch.errors import ConfigError

ROOT = Path(largebatch.__file__).parents[1]


def parser(**recipe):
    made = Parser("For a test.")
    made.add_recipe("recipe", **recipe)
    made.add_argument("--out_dir", type=Path)
    made.add_argument("--old-name", action="store_true")
    made.add_argument("--count", type=int)
    made.add_argument("--kind", choices=("first", "second"))
    return made


@pytest.mark.parametrize(
    "words", [["--out_dir=x", "digits"], ["--config", "configs/digits.py"], []]
)
def test_a_recipe_is_a_flag_or_a_word(words, monkeypatch, tmp_path):
    for place in (ROOT, tmp_path):  # from another directory too
        monkeypatch.chdir(place)
        flags, _ = parser(default="digits").parse_run(words)
        assert flags.config.resolve() == ROOT / "configs" / "digits.py"


def test_options_may_stand_anywhere_and_with_a_space():
    words = ["--config.run.seed", "3", "digits", "--config.schedule.peak=1", "--count=2"]
    flags, overrides = parser().parse_run(words)
    assert overrides == [("run.seed", "3"), ("schedule.peak", "1")]
    assert (flags.config.stem, flags.count) == ("digits", 2)
    assert written(overrides) == ["--config.run.seed=3", "--config.schedule.peak=1"]


def test_dashes_and_underscores_are_the_same():
    for words in (["--out-dir=a-b", "--old-name"], ["--out_dir=a-b", "--old_name"]):
        flags = parser(optional=True).parse_args(words)
        assert flags.out_dir == Path("a-b")
        assert flags.old_name
        assert flags.config is None


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--count=4x"], "--count=4x"),
        (["--kind=third"], "first"),
        (["--cuont=4"], "'--count'"),
        (["--count"], "--count has no value; use --count="),
        (["--lr", "0.1"], "--config.schedule.peak=0.1"),
        (["--config.run.seed"], "--config.run.seed=VALUE"),
        ([], "--config"),
    ],
)
def test_a_mistake_is_one_line(words, remedy):
    with pytest.raises(ConfigError, match=remedy) as caught:
        parser().parse_run(words)
    assert "\n" not in str(caught.value)


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        parser().parse_run(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"largebatch {largebatch.__version__}\n"


def test_mistakes_are_found_without_jax(tmp_path):
    code = """
import sys
import train
code = train.main(["--config.run.sede=1"]), train.main(["--config.batch.workers=0"])
print(code, [name for name in ("jax", "flax", "optax") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "(2, 2) []\n"
    assert done.stderr.count("error: ") == 2
