"""Weights of our own checkpoints."""

import dataclasses
import json

import numpy as np
import pytest

from largebatch.checkpoint import arrays as stored_arrays
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint import manifest
from largebatch.checkpoint.manifest import Progress
from largebatch.config import Facts, freeze, resolve
from largebatch.data import open_source
from largebatch.data.photos import MEAN, STD
from largebatch.errors import CheckpointError
from largebatch.training.state import TrainState
from largebatch.trees import flatten_paths
from largebatch.weights import options_at, read
from tests.weights.samples import SMALL, sample

OPTIONS = {
    "model": {"name": "resnet10", "width": 4, "stem": "small", "dtype": "bfloat16"},
    "norm": {"epsilon": 2e-5},
    "batch": {"workers": 8, "images_per_worker": 3},
    "schedule": {"peak": 1.0, "length": "100 steps", "warmup": "3 steps"},
}
FACTS = Facts(1437, 360, 10, (8, 8, 1), devices=8)
MODEL = dataclasses.replace(SMALL, classes=10, epsilon=2e-5)


def checkpoint(run, step, seed=0, facts=FACTS, change=lambda about: about, **options):
    """A checkpoint as training writes it, of random arrays; what it was made from."""
    config = freeze({k: OPTIONS.get(k, {}) | options.get(k, {}) for k in OPTIONS | options})
    plan = resolve(config, facts)
    channels = facts.image_shape[2]
    weights = sample(dataclasses.replace(MODEL, classes=facts.classes, channels=channels), seed)
    momentum = {"momentum": weights.params}
    arrays = stored_arrays.on_host(TrainState(weights.params, weights.stats, momentum))
    directory = run / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    about = change(manifest.described(Progress(step=step, samples=24 * step), plan))
    checkpoint_directories.write(directory, about, arrays)
    return weights


def same(one, other):
    ours, theirs = ({**flatten_paths(w.params), **flatten_paths(w.stats)} for w in (one, other))
    return ours.keys() == theirs.keys() and all(
        ours[path].dtype == theirs[path].dtype and ours[path].tobytes() == theirs[path].tobytes()
        for path in ours
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with checkpoints 4, 8 and 12, the newest of which is damaged."""
    path = tmp_path_factory.mktemp("run")
    made = {step: checkpoint(path, step, seed=step) for step in (4, 8, 12)}
    largest = max((path / "checkpoints/12/arrays").rglob("*"), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    return path, made


def test_the_newest_sound_checkpoint(run):
    path, made = run
    eighth = str(path / "checkpoints/8")
    for place, origin in (
        (path, f"{eighth}, since 1 newer cannot be used"),
        (path / "checkpoints", f"{eighth}, since 1 newer cannot be used"),
        (path / "checkpoints/8", eighth),
    ):
        found = read(place)
        assert same(found, made[8])
        assert found.origin == origin
    digits = open_source("digits", "validation")
    assert found.model == MODEL  # float32, whatever the run computed in
    assert found.classes == tuple("0123456789")
    assert (found.mean, found.std) == (digits.mean, digits.std)
    assert found.image_shape == (8, 8, 1)
    assert found.evaluation_crop == 1.0  # digits are never cropped
    assert found.data == "digits"
    assert (path / "checkpoints/12").is_dir()  # a reader sets nothing aside


def test_an_older_one_by_its_own_path(run):
    path, made = run
    assert same(read(path / "checkpoints/4"), made[4])


def test_a_damaged_one_by_its_own_path(run):
    path, _ = run
    with pytest.raises(CheckpointError, match=r"12 cannot be used: .* the digest of the manifest"):
        read(path / "checkpoints/12")


def test_a_run_without_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        read(tmp_path)


@pytest.mark.parametrize("statistics", ["auto", "ema", "last", "precise"])
def test_a_checkpoint_holds_the_statistics_of_its_evaluation(statistics, tmp_path):
    weights = checkpoint(tmp_path, 4, norm={"statistics": statistics, "epsilon": 2e-5})
    assert same(read(tmp_path), weights)


def test_what_the_run_has_written_down_comes_before_its_data(tmp_path):
    checkpoint(tmp_path, 4)
    written = {"classes": [f"n{i}" for i in range(10)], "mean": [1.5], "std": [2.5]}
    (tmp_path / "config.json").write_text(json.dumps({"source": written}))
    found = read(tmp_path)
    assert found.classes == tuple(written["classes"])
    assert (found.mean, found.std) == ((1.5,), (2.5,))


def test_photographs_that_are_not_here(tmp_path):
    facts = dataclasses.replace(FACTS, image_shape=(32, 32, 3), classes=7)
    data = {"source": f"folder:{tmp_path}/gone", "image_size": 32, "evaluation_crop": 0.75}
    weights = checkpoint(tmp_path, 4, facts=facts, data=data)
    found = read(tmp_path)
    assert same(found, weights)
    assert found.classes == ()
    assert (found.mean, found.std) == (MEAN, STD)
    assert (found.evaluation_crop, found.image_shape) == (0.75, (32, 32, 3))


def test_a_checkpoint_of_another_network(tmp_path):
    checkpoint(tmp_path, 4, model=OPTIONS["model"] | {"width": 8})
    with pytest.raises(CheckpointError, match="not hold the network of its options: head/kernel"):
        read(tmp_path)


def test_one_channel_needs_its_data(tmp_path):
    checkpoint(tmp_path, 4, data={"source": f"folder:{tmp_path}/gone"})
    with pytest.raises(CheckpointError, match="needs its data for their normalisation"):
        read(tmp_path)


def test_the_stage_of_the_checkpoint_decides_what_evaluation_sees(tmp_path):
    facts = dataclasses.replace(FACTS, image_shape=(8, 8, 1))
    stages = ("50 steps: data.image_size=16",)
    for step, side in ((4, 8), (60, 16)):
        checkpoint(
            tmp_path,
            step,
            facts=facts,
            batch=OPTIONS["batch"] | {"stages": stages},
            data={"image_size": 8},
        )
        assert read(tmp_path).image_shape == (side, side, 1)


def test_options_are_those_of_the_stage_of_the_checkpoint(tmp_path):
    stages = ("50 steps: data.image_size=16",)
    for step, side in ((4, 8), (60, 16)):
        checkpoint(
            tmp_path, step, batch=OPTIONS["batch"] | {"stages": stages}, data={"image_size": 8}
        )
        assert options_at(read(tmp_path).manifest, ("data",)).data.image_size == side


def test_evaluation_at_another_size(tmp_path):
    checkpoint(tmp_path, 4, data={"evaluation_size": 24})
    assert read(tmp_path).image_shape == (24, 24, 1)


def test_options_of_other_versions_are_left_alone_outside_of_the_network(tmp_path):
    def older(about):
        config = dict(about.config)
        config["run"] = config["run"] | {"an_option_of_old": 3}
        return dataclasses.replace(about, config=config)

    def newer(about):
        config = dict(about.config)
        config["model"] = config["model"] | {"attention": True}
        return dataclasses.replace(about, config=config)

    weights = checkpoint(tmp_path / "older", 4, change=older)
    assert same(read(tmp_path / "older"), weights)
    checkpoint(tmp_path / "newer", 4, change=newer)
    with pytest.raises(CheckpointError, match=r"another version: unknown option 'model\.attention"):
        read(tmp_path / "newer")


def test_float64_arrays_are_not_lost_on(tmp_path):
    """Whatever the state's type, weights are float32."""
    weights = checkpoint(tmp_path, 4)
    assert {x.dtype for x in flatten_paths(read(tmp_path).params).values()} == {np.dtype("float32")}
    assert weights.model.dtype == "float32"
