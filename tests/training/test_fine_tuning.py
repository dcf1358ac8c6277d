"""Frozen parameters and learning rate multipliers (``optimizer.lr_mults``) in steps and runs."""

import functools
import json
import re

import jax
import pytest

from largebatch.errors import ConfigError
from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths
from tests.training import worlds
from tests.training.worlds import (
    assert_equal,
    changed,
    digests,
    random_state,
    rows,
    slow,
    train,
    trained,
)

RULES = ("(stem|stages/0)/.*: 0", "head/.*: 2", "stages/1/.*/kernel: 0.1")
OPTIMIZERS = {
    "lars": {"name": "lars"},
    "clipped": {"name": "sgd", "clip_norm": 0.1, "trust_coefficient": "auto"},
    "lamb": {"name": "lamb", "trust_coefficient": "auto", "epsilon": 1e-2},
    "adamw": {"name": "optax:adamw", "options": "eps=1e-3", "trust_coefficient": "auto"},
}


def factor(path):
    """Of `RULES`, written plainly."""
    if path.startswith(("stem/", "stages/0/")):
        return 0.0
    if path.startswith("head/"):
        return 2.0
    return 0.1 if path.endswith("kernel") else 1.0


def programs(devices, microbatch, optimizer, lr_mults=RULES, **sections):
    made = worlds.config(
        model=worlds.RESNET,
        optimizer=optimizer | {"lr_mults": lr_mults},
        comm={"bucket_mib": 0.001},
        **sections,
    )
    return Stage(worlds.steps(made, devices, microbatch))


def assert_frozen(found, first):
    """What has the factor 0 is bitwise unchanged, and all else moves."""
    found = flatten_paths(found)
    for path, value in flatten_paths(first).items():
        assert (found[path].tobytes() == value.tobytes()) == (factor(path) == 0), path


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rule", ["lars_mlperf", slow("sgd")])
def test_equal_to_the_reference_and_bitwise_unchanged(rule):
    options = {"name": rule.partition("_")[0], "momentum": 0.9, "weight_decay": 1e-3}
    stage = programs(1, 8, options | ({"nesterov": True} if rule == "sgd" else {"epsilon": 1e-6}))
    assert set(stage.steps.frozen) == {p for p in stage.steps.multipliers if factor(p) == 0}
    found = worlds.assert_equal_to_reference(stage, rule, factors=factor)
    first = random_state(stage)
    assert_frozen(found.params, first.params)
    assert_frozen(found.stats, first.stats)
    moments = flatten_paths(found.optimizer.momentum)
    assert moments.keys() == {p for p in flatten_paths(found.params) if factor(p)}


@functools.cache
def whole(name):
    stage = programs(1, 8, OPTIMIZERS[name], schedule={"ema": "100 samples"})
    return trained(stage, random_state(stage))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "devices", "update"),
    [
        ("clipped", 4, "sharded"),
        ("lars", 4, "replicated"),
        ("lamb", 4, "sharded"),
        ("adamw", 8, "sharded"),
    ],
)
def test_the_devices_do_not_matter(name, devices, update):
    options = OPTIMIZERS[name] | {"update": update}
    stage = programs(devices, 1, options, schedule={"ema": "100 samples"})
    reduced = {path for bucket in stage.steps.buckets for path in bucket.paths}
    assert reduced == {p for p in flatten_paths(stage.steps.model.shapes()[0]) if factor(p)}
    first = random_state(stage)
    found = trained(stage, first)
    assert_equal(found, whole(name))
    assert_frozen(found[0].ema.params, first.params)
    assert_frozen(found[0].ema.stats, first.stats)


def test_backward_ends_at_the_first_trained_layer():
    """A head alone needs no convolution in backward, and no BatchNorm statistics of the batch."""
    with jax.enable_x64(True):
        made = programs(2, 1, {"name": "lars"}, lr_mults=("(?!head/).*: 0",))
        images, labels = made._batch(worlds.SHAPE[:2])
        state = made.state.params, made.state.stats
        lowered = (
            made.steps.finish.lower(*made.finish_arguments),
            made.steps.accumulate.lower(*state, made.carry, *made.images),
            made.steps.evaluate.lower(*state, images, labels, labels, None),
        )
    step, alone, forward = (
        len(re.findall(r"stablehlo\.convolution", each.as_text())) for each in lowered
    )
    assert step == alone == forward > 5


CONFIG = worlds.digits(
    8,
    4,
    schedule={"ema": "5 steps"},
    optimizer={"lr_mults": ("(stem|norm)/.*: 0",)},
    run={"layers_every": "4 steps"},
)


def test_a_run_with_frozen_layers(tmp_path):
    """Precise statistics, averaged weights, log, resuming and unfreezing in a second run."""
    train(CONFIG, tmp_path / "whole")
    train(changed(CONFIG, run__stop_after="4 steps"), tmp_path / "resumed")
    train(CONFIG, tmp_path / "resumed")
    found = digests(tmp_path / "whole", 8)
    assert digests(tmp_path / "resumed", 8) == found
    assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")
    before = digests(tmp_path / "whole", 4)
    for path, digest in found.items():
        if path.startswith(("params", "stats", "ema")):
            assert (before[path] == digest) == ("/head/" not in path), path
    assert not any(re.search("momentum/(stem|norm)", path) for path in found)
    layers = (tmp_path / "whole" / "layers.jsonl").read_text().splitlines()
    logged = {name for line in layers for name in json.loads(line)["layers"]}
    assert logged == {"head/kernel", "head/bias", "norm"}
    following = changed(CONFIG, optimizer__lr_mults="", schedule__length="4 steps")
    following = changed(following, model__init_from=str(tmp_path / "whole"))
    train(following, tmp_path / "unfrozen")
    moved = digests(tmp_path / "unfrozen", 4)
    assert moved["params/stem/kernel"] != found["params/stem/kernel"]


@pytest.mark.parametrize("text", ["stems/.*: 0", ".*: 0", "stem: much"])
def test_patterns_that_are_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"optimizer\.lr_mults"):
        train(changed(CONFIG, optimizer__lr_mults=text), tmp_path)
