import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from largebatch.config import changed, differences, load, override, table
from largebatch.config.durations import samples
from largebatch.config.schema import Config, options
from largebatch.config.synonyms import _ARGUMENTS
from largebatch.environment import ROOT
from largebatch.errors import ConfigError


def write(tmp_path, text):
    path = tmp_path / "recipe.py"
    path.write_text(text)
    return path


HEAD = (
    "from largebatch.config import default_config\n\ndef get_config():\n    c = default_config()\n"
)


def test_a_recipe_changes_only_what_it_sets(tmp_path):
    path = write(
        tmp_path, HEAD + "    c.batch.workers = 2048\n    c.norm.span = 'all'\n    return c\n"
    )
    assert changed(load(path)) == {"batch.workers": 2048, "norm.span": "all"}
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("norm.span", "all", "all"),
        ("norm.span", "4", 4),
        ("schedule.peak", "3", 3.0),
        ("optimizer.trust_skip", "bn,fc", ("bn", "fc")),
        ("optimizer.trust_skip", "('bn',)", ("bn",)),
        ("optimizer.epsilon", "1e-9", 1e-9),
        ("data.flip", "true", True),
        ("schedule.points", "30 epochs: 1,60 epochs: 0", ("30 epochs: 1", "60 epochs: 0")),
    ],
)
def test_overrides_read_by_type(key, text, value):
    config = override(Config(), key, text)
    section, name = key.split(".")
    got = getattr(getattr(config, section), name)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("bacth.workers", "16", ["'batch.workers'"]),
        ("batch.momentum", "1", ["'norm.momentum'", "'optimizer.momentum'"]),
        ("batch.workers", "2.5", ["batch.workers", "2.5", "an integer"]),
        ("schedule.peak", "nan", ["schedule.peak", "nan"]),
        ("norm.span", "some", ["norm.span", "'some'", "'all'"]),
        ("run", "1", ["docs/configuration.md"]),
        ("seed", "1", ["--config.run.seed=1"]),
        ("--config.model.dtype", "float32", ["use 'model.dtype'"]),
        ("lr", "0.1", ["--config.schedule.peak=0.1"]),
    ],
)
def test_a_wrong_override_names_the_key_and_the_remedy(key, text, words):
    with pytest.raises(ConfigError) as caught:
        override(Config(), key, text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    c.batch.wokers = 1\n    return c\n", ["recipe.py line 5", "wokers"]),
        ("    return 1 / 0\n", ["recipe.py line 5", "ZeroDivisionError"]),
        ("    return 3\n", ["recipe.py", "get_config()"]),
        ("    return {'batsh': {}}\n", ["'batch'"]),
        ("    raise SystemExit(7)\n", ["recipe.py line 5", "SystemExit"]),
        ("    return c c\n", ["recipe.py line 5"]),
    ],
)
def test_a_wrong_recipe_names_file_line_and_reason(tmp_path, body, words):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, HEAD + body))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["5", "epochs", "five epochs", "-1 epochs", "1e3 samples", ""])
def test_a_wrong_duration_names_its_option(text):
    with pytest.raises(ConfigError, match=r"schedule\.warmup=.*'5 epochs'"):
        samples(text, "schedule.warmup", per_step=1, per_epoch=1)


def test_differences_state_whether_the_mathematics_change():
    other = override(override(Config(), "run.seed", "7"), "data.threads", "5")
    found = differences(Config(), other)
    assert [(d.key, d.stored, d.requested, d.mathematics) for d in found] == [
        ("data.threads", 0, 5, False),
        ("run.seed", 0, 7, True),
    ]
    assert table(found).splitlines()[2].split() == ["run.seed", "0", "7", "changes"]


def test_a_plan_touches_no_device(tmp_path):
    code = """
import jax
def refuse(*a, **k): raise AssertionError("a device was asked for")
jax.devices = jax.local_devices = jax.device_count = refuse
from largebatch.config import Facts, freeze
from largebatch.config.resolution import resolve
config = freeze({"batch": {"workers": 2048, "images_per_worker": 40}, "schedule": {"peak": 13.0}})
plan = resolve(config, Facts(1281167, 50000, 1000, (224, 224, 3), devices=2048, processes=512))
stage = plan.first_stage
assert stage.samples_per_step == 81920 and stage.microbatches == stage.microbatch == 1
from jax._src import xla_bridge
assert not xla_bridge._backends
print(plan.steps)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1408", done.stderr  # ceil(90 × 1,281,167 / 81,920)


def test_the_generated_pages_are_up_to_date(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root / "scripts")
    for path, text in importlib.import_module("pages.tables").pages(root).items():
        assert path.read_text() == text, f"{path}: run python scripts/options.py"


def test_every_argument_that_is_advised_is_valid():
    known = {key for key, _, _ in options(Config())}
    for argument in _ARGUMENTS:
        for part in re.findall(r"--config\.([\w.]+)=('[^']*'|\S+)", argument):
            key, text = part
            assert key in known
            if text not in ("VALUE", "W", "N"):
                override(Config(), key, text.strip("'"))


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
        assert load(ROOT / "configs" / "digits.py", [("data.source", text)]).data.source == source
