"""Words of other libraries, and what an unknown option is answered with."""

import dataclasses
import re
from pathlib import Path

import pytest

from largebatch.cli import split_overrides
from largebatch.config import Config, adjusted, load, options, override
from largebatch.config.synonyms import advice
from largebatch.errors import ConfigError

ROOT = Path(__file__).parents[2]
KNOWN = {key for key, _, _ in options(Config())}


@pytest.mark.parametrize(
    ("word", "value", "argument"),
    [
        ("lr", "0.1", "--config.schedule.peak=0.1"),
        ("optimizer.learning_rate", "0.1", "--config.schedule.peak=0.1"),
        ("--epochs", "10", "--config.schedule.length='10 epochs'"),
        ("max_duration", "90ep", "--config.schedule.length='90 epochs'"),
        ("max_duration", "500ba", "--config.schedule.length='500 steps'"),
        ("--warmup-epochs", "5", "--config.schedule.warmup='5 epochs'"),
        ("wd", "1e-4", "--config.optimizer.weight_decay=1e-4"),
        ("amp", "", "--config.model.dtype=bfloat16"),
        ("precision", "fp16", "--config.model.dtype=float16"),
        ("precision", "32", "--config.model.dtype=float32"),
        ("grad_accum", "4", "--config.batch.microbatch=auto"),
        ("sync-bn", "", "--config.norm.span=all"),
        ("seed", "3", "--config.run.seed=3"),
        ("data", "/pets", "--config.data.source=/pets"),
        ("num_workers", "8", "--config.data.threads=8"),
    ],
)
def test_a_word_becomes_an_argument_that_is_taken(word, value, argument):
    assert argument in advice(word, value)
    ((key, text),), _ = split_overrides([argument.replace("'", "")])
    override(Config(), key, text)


@pytest.mark.parametrize("batch", [1, 7, 256, 1000, 4096, 81920])
def test_a_batch_becomes_two_factors(batch):
    found = re.findall(r"--config\.(batch\.\w+)=(\d+)", advice("batch_size", str(batch)))
    assert [key for key, _ in found] == ["batch.workers", "batch.images_per_worker"]
    workers, images = (int(number) for _, number in found)
    assert workers * images == batch


def test_a_batch_without_a_useful_factor_is_left_open():
    assert "--config.batch.workers=W" in advice("batch_size", "1031")
    assert "--config.batch.workers=W" in advice("batch_size", "")


def test_workers_are_both_kinds():
    said = advice("workers", "8")
    assert "--config.data.threads=8" in said
    assert "batch.workers" in said


def test_every_option_that_is_advised_exists():
    from largebatch.config import synonyms

    named = {*synonyms._WORDS, *synonyms._DURATIONS}
    assert {name for name in named if not name.startswith("--")} <= KNOWN


def test_an_unknown_word_has_no_advice():
    assert advice("run.sede", "1") == ""


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
    assert len(re.findall(r"[a-z_]+\.[a-z_]+", str(caught.value))) <= 6


def test_a_short_number_format_is_hinted_at_once():
    with pytest.raises(ConfigError) as caught:
        override(Config(), "model.dtype", "fp16")
    assert "did you mean 'float16'" in str(caught.value)
    assert str(caught.value).count("bfloat16") == 1


@pytest.mark.parametrize(
    ("text", "near"), [("8.5", "8 or 9"), ("8.0", "use 8"), ("1e3", "use 1000"), ("x", "")]
)
def test_whole_numbers_are_offered(text, near):
    with pytest.raises(ConfigError) as caught:
        override(Config(), "batch.workers", text)
    assert near in str(caught.value)
    assert str(caught.value).count("integer") == 1


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


def test_a_training_shortened_below_its_warmup_names_values_that_work():
    with pytest.raises(ConfigError) as caught:
        digits(("schedule.length", "4 epochs"))
    said = str(caught.value)
    assert "samples" not in said
    (warmup,) = re.findall(r"--config\.schedule\.warmup='(.*?)'", said)
    (scale,) = re.findall(r"--config\.run\.scale_length=([\d.]+)", said)
    own = digits(("schedule.length", "4 epochs"), ("schedule.warmup", warmup))
    scaled = digits(("run.scale_length", scale))
    for field in ("length", "warmup"):
        one, other = (getattr(each.schedule, field) for each in (own, scaled))
        assert float(one.split()[0]) == float(other.split()[0])
    whole = digits().schedule
    share = float(whole.warmup.split()[0]) / float(whole.length.split()[0])
    assert float(warmup.split()[0]) / 4 == pytest.approx(share)


def test_other_durations_beyond_a_shorter_training_are_named():
    with pytest.raises(ConfigError, match=r"schedule\.steps=.*run\.scale_length=0\.5"):
        load(ROOT / "configs" / "goyal2017_8k.py", [("schedule.length", "45 epochs")])


def test_options_of_a_sweep_may_leave_the_warmup_to_an_axis():
    config = adjusted(digits(), [("schedule.length", "4 epochs")])
    assert config.schedule.length == "4 epochs"


def test_lengths_that_fit_are_taken():
    assert digits(("schedule.length", "6 epochs")).schedule.length == "6 epochs"
    given = {"schedule.length": "4 epochs", "schedule.warmup": "1 epochs"}
    assert dataclasses.asdict(digits(*given.items()).schedule)["warmup"] == "1 epochs"
