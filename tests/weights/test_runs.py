"""Weights of runs and their checkpoints."""

import dataclasses
import json

import pytest

from largebatch.checkpoint import file
from largebatch.checkpoint.checkpoints import path_of
from largebatch.checkpoint.file import Progress
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Facts, freeze
from largebatch.config.resolution import resolve
from largebatch.data import open_source
from largebatch.data.source import MEAN, STD
from largebatch.errors import CheckpointError
from largebatch.training.state import Averages, TrainState
from largebatch.weights import read
from tests.weights.samples import SMALL, same, sample

OPTIONS = {
    "model": {"name": "resnet10", "width": 4, "stem": "small", "dtype": "bfloat16"},
    "norm": {"epsilon": 2e-5},
    "batch": {"workers": 8, "images_per_worker": 3},
    "schedule": {"peak": 1.0, "length": "100 steps", "warmup": "3 steps"},
}
FACTS = Facts(1437, 360, 10, (8, 8, 1), devices=8)
MODEL = dataclasses.replace(SMALL, classes=10, epsilon=2e-5)


def checkpoint(run, step, seed=0, facts=FACTS, change=lambda about: about, ema=False, **options):
    """Write a checkpoint of random weights and config.json as training does; return the weights.

    With ``ema`` it holds an average, weights of the next seed.
    """
    config = freeze({k: OPTIONS.get(k, {}) | options.get(k, {}) for k in OPTIONS | options})
    plan = resolve(config, facts)
    channels = facts.image_shape[2]
    model = dataclasses.replace(MODEL, classes=facts.classes, channels=channels)
    weights, average = sample(model, seed), sample(model, seed + 1)
    state = TrainState(weights.params, weights.stats, {"momentum": weights.params})
    if ema:
        state = state._replace(ema=Averages(average.params, average.stats))
    place = LocalPlace(run)
    place.create()
    about = change(file.described(Progress(step=step, samples=24 * step), plan))
    place.write(path_of(step), file.encode(about, file.on_host(state)))
    if config.data.source == "digits":
        digits = open_source("digits", "validation")
        stated = {name: getattr(digits, name) for name in ("classes", "mean", "std")}
        (run / "config.json").write_text(json.dumps({"source": stated}))
    return weights


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with checkpoints 4, 8 and 12, the newest of which is damaged."""
    path = tmp_path_factory.mktemp("run")
    made = {step: checkpoint(path, step, seed=step) for step in (4, 8, 12)}
    content = bytearray((path / path_of(12)).read_bytes())
    content[-1000] ^= 1
    (path / path_of(12)).write_bytes(content)
    return path, made


def test_the_newest_valid_checkpoint(run):
    path, made = run
    eighth = str(path / path_of(8))
    for place, origin in (
        (path, f"{eighth}, since 1 newer cannot be used"),
        (path / "checkpoints", f"{eighth}, since 1 newer cannot be used"),
        (path / path_of(8), eighth),
    ):
        found = read(place)
        assert same(found, made[8])
        assert found.origin == origin
    assert same(read(path / path_of(4)), made[4])
    with pytest.raises(CheckpointError, match=r"12\.safetensors cannot be used: .*digest"):
        read(path / path_of(12))
    digits = open_source("digits", "validation")
    assert found.model == MODEL  # float32, whatever the run computed in
    assert found.classes == tuple("0123456789")
    assert (found.mean, found.std) == (digits.mean, digits.std)
    assert found.image_shape == (8, 8, 1)
    assert found.evaluation_crop == 1.0  # digits are never cropped
    assert found.data == "digits"
    assert (path / path_of(12)).exists()  # reading moves nothing


def test_the_best_is_of_the_weights_that_were_compared(tmp_path):
    def evaluated(top1):
        return lambda about: dataclasses.replace(
            about, progress=dataclasses.replace(about.progress, validation_top1=top1)
        )

    for step, top1 in ((4, 0.7), (8, 0.6)):
        weights = checkpoint(tmp_path, step, seed=step, change=evaluated(top1), ema=True)
    for asked in (False, True):
        found = read(tmp_path, best=True, ema=asked)
        assert same(found, sample(MODEL, 5))
        assert "averaged weights, by whose accuracy" in found.origin
    assert same(read(tmp_path), weights)  # the newest is that of the flag


def test_photographs_that_are_absent_have_the_usual_normalization(tmp_path):
    facts = dataclasses.replace(FACTS, image_shape=(32, 32, 3), classes=7)
    data = {"source": f"folder:{tmp_path}/gone", "image_size": 32, "evaluation_crop": 0.75}
    weights = checkpoint(tmp_path, 4, facts=facts, data=data)
    found = read(tmp_path)
    assert same(found, weights)
    assert (found.classes, found.mean, found.std) == ((), MEAN, STD)
    assert (found.evaluation_crop, found.image_shape) == (0.75, (32, 32, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (None, "no checkpoint yet"),
        ({"model": {"width": 8}}, "head/kernel: expected"),
        ({"data": {"source": "folder:/gone"}}, "normalization"),
    ],
)
def test_unusable_runs(options, words, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    if options is not None:
        checkpoint(tmp_path, 4, **options)
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path)


def test_image_size_and_options_are_those_of_the_checkpoints_stage(tmp_path):
    batch = OPTIONS["batch"] | {"stages": ("50 steps: data.image_size=16",)}
    for step, side in ((4, 8), (60, 16)):
        checkpoint(tmp_path, step, batch=batch, data={"image_size": 8})
        found = read(tmp_path)
        assert found.image_shape == (side, side, 1)
        assert found.options.data.image_size == side
    checkpoint(tmp_path, 61, data={"evaluation_size": 24})
    assert read(tmp_path).image_shape == (24, 24, 1)


def test_unknown_options_matter_in_sections_of_the_network_only(tmp_path):
    def unknown(section):
        def change(about):
            config = dict(about.config)
            config[section] = config[section] | {"an_option": 3}
            return dataclasses.replace(about, config=config)

        return change

    weights = checkpoint(tmp_path / "run", 4, change=unknown("run"))
    assert same(read(tmp_path / "run"), weights)
    checkpoint(tmp_path / "model", 4, change=unknown("model"))
    with pytest.raises(CheckpointError, match=r"another version: .*model\.an_option"):
        read(tmp_path / "model")
