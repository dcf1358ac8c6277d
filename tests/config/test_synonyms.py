"""Option names of other libraries, and the answer to an unknown option."""

import re
from pathlib import Path

import pytest

from largebatch.config import Config, load, options, override
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError

ROOT = Path(__file__).parents[2]
KNOWN = {key for key, _, _ in options(Config())}


@pytest.mark.parametrize(
    ("word", "value", "argument"),
    [
        ("lr", "0.1", "--config.schedule.peak=0.1"),
        ("--epochs", "10", "--config.schedule.length='90 epochs'"),
        ("--clip-grad", "5", "--config.optimizer.clip_norm=5"),
        ("amp", "", "--config.model.dtype=bfloat16"),
        ("aa", "rand-m6-mstd0.5-inc1", "--config.augment.policy=rand-m9-mstd0.5-inc1"),
        ("batch_size", "256", "--config.batch.workers=W --config.batch.images_per_worker=N"),
        ("--pretrained", "", "--init_from=VALUE"),
        ("--weights", "a.pth", "--init_from=a.pth"),
        ("--data-dir", "/x", "--config.data.source=/x"),
    ],
)
def test_a_word_becomes_an_argument(word, value, argument):
    assert argument in advice(word, value)


def test_every_argument_that_is_advised_is_valid():
    from largebatch.config.synonyms import _ARGUMENTS

    for argument in _ARGUMENTS:
        for part in re.findall(r"--config\.([\w.]+)=('[^']*'|\S+)", argument):
            key, text = part
            assert key in KNOWN
            if text not in ("VALUE", "W", "N"):
                override(Config(), key, text.strip("'"))


@pytest.mark.parametrize("key", ["config.model.dtype", "--config.model.dtype"])
def test_the_prefix_of_the_command_line_is_named(key):
    with pytest.raises(ConfigError, match=r"use 'model\.dtype'"):
        override(Config(), key, "float32")


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("run.sede", ["'run.seed'"]),
        ("sede", ["'run.seed'"]),
        ("optimizer.smoothing", ["loss.label_smoothing"]),
        ("data.workers", ["batch.workers"]),
    ],
)
def test_an_unknown_option_is_answered_with_full_names(key, names):
    with pytest.raises(ConfigError) as caught:
        override(Config(), key, "1")
    for name in names:
        assert name in str(caught.value)


def digits(*given):
    return load(ROOT / "configs" / "digits.py", given)


def test_a_bare_folder_or_public_name_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    for text, source in {
        "pets": "folder:pets",
        str(tmp_path / "pets"): f"folder:{tmp_path / 'pets'}",
        "./nothing": "folder:nothing",
        "imagenet": "tfds:imagenet2012",
        "digits": "digits",
        "folder:pets": "folder:pets",
        "imagnet": "imagnet",
    }.items():
        assert digits(("data.source", text)).data.source == source
