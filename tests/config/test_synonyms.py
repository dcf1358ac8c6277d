"""Option names of other libraries, and the answer to an unknown option."""

import re
from pathlib import Path

import pytest

from largebatch.cli import split_overrides
from largebatch.config import Config, load, options, override
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError

ROOT = Path(__file__).parents[2]
KNOWN = {key for key, _, _ in options(Config())}


@pytest.mark.parametrize(
    ("word", "value", "argument"),
    [
        ("lr", "0.1", "--config.schedule.peak=0.1"),
        ("--epochs", "10", "--config.schedule.length='10 epochs'"),
        ("max_duration", "90ep", "--config.schedule.length='90 epochs'"),
        ("wd", "1e-4", "--config.optimizer.weight_decay=1e-4"),
        ("--clip-grad", "5", "--config.optimizer.clip_norm=5"),
        ("model_ema_decay", "0.9998", "--config.schedule.ema='5000 steps'"),
        ("amp", "", "--config.model.dtype=bfloat16"),
        ("precision", "fp16", "--config.model.dtype=float16"),
        ("grad_accum", "4", "--config.batch.microbatch=auto"),
        ("blr", "0.1", "--config.schedule.per_256=0.1"),
        ("bce-loss", "", "--config.loss.kind=sigmoid"),
        ("aa", "rand-m6-mstd0.5-inc1", "--config.augment.policy=rand-m6-mstd0.5-inc1"),
        ("auto-augment", "ta_wide", "--config.augment.policy=trivialaugment"),
        ("sync-bn", "", "--config.norm.span=all"),
        ("seed", "3", "--config.run.seed=3"),
        ("num_workers", "8", "--config.data.threads=8"),
    ],
)
def test_a_word_becomes_a_valid_argument(word, value, argument):
    assert argument in advice(word, value)
    ((key, text),), _ = split_overrides([argument.replace("'", "")])
    override(Config(), key, text)


@pytest.mark.parametrize("batch", [1, 7, 1000, 81920])
def test_a_batch_becomes_two_factors(batch):
    found = re.findall(r"--config\.(batch\.\w+)=(\d+)", advice("batch_size", str(batch)))
    assert [key for key, _ in found] == ["batch.workers", "batch.images_per_worker"]
    workers, images = (int(number) for _, number in found)
    assert workers * images == batch


def test_a_batch_without_a_useful_factor_is_left_open():
    assert "--config.batch.workers=W" in advice("batch_size", "1031")
    assert "--config.batch.workers=W" in advice("batch_size", "")


@pytest.mark.parametrize(
    ("word", "value", "argument"),
    [
        ("--pretrained", "", "--init_from=WEIGHTS"),
        ("model.pretrained", "True", "--init_from=WEIGHTS"),
        ("--weights", "a.pth", "--init_from=a.pth"),
        ("--data-dir", "/x", "--config.data.source=folder:/x"),
        ("--data-dir", "", "--config.data.data_dir=PATH"),
        ("batch.size", "256", "--config.batch.workers=8"),
    ],
)
def test_a_word_that_is_a_flag_or_several_options(word, value, argument):
    assert argument in advice(word, value)


@pytest.mark.parametrize("key", ["config.model.dtype", "--config.model.dtype"])
def test_the_prefix_of_the_command_line_is_named(key):
    with pytest.raises(ConfigError, match=r"use 'model\.dtype'"):
        override(Config(), key, "float32")


def test_every_option_that_is_advised_exists():
    from largebatch.config import synonyms

    named = {*synonyms._WORDS, *synonyms._DURATIONS}
    assert {name for name in named if not name.startswith("--")} <= KNOWN


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("run.sede", ["'run.seed'"]),
        ("sede", ["'run.seed'"]),
        ("optimizer.smoothing", ["loss.label_smoothing"]),
        ("data.workers", ["data.threads", "batch.workers"]),
        ("optimizer.foo", ["optimizer."]),
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
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "index.json").write_text("{}")
    for text, source in {
        "pets": "folder:pets",
        str(tmp_path / "pets"): f"folder:{tmp_path / 'pets'}",
        "./nothing": "folder:nothing",
        "./store": "decoded:store",
        "imagenet": "tfds:imagenet2012",
        "digits": "digits",
        "folder:pets": "folder:pets",
        "imagnet": "imagnet",
    }.items():
        assert digits(("data.source", text)).data.source == source
