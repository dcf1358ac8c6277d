"""Frozen parameters and learning rate multipliers (``optimizer.lr_mults``) in steps and runs.

Tolerances of float64 are those of test_equality.py.
"""

import functools
import json
import re

import jax
import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.training.session import Request, run
from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths
from tests import reference
from tests.training import worlds
from tests.training.worlds import changed, digests, rows

EQUAL = 1e-10
RULES = ("(stem|stages/0)/.*: 0", "head/.*: 2", "stages/1/.*/kernel: 0.1")
RATES = (0.5, 0.3, 0.4)


def factor(path):
    """Of `RULES`, written plainly."""
    if path.startswith(("stem/", "stages/0/")):
        return 0.0
    if path.startswith("head/"):
        return 2.0
    return 0.1 if path.endswith("kernel") else 1.0


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def programs(devices, microbatch, optimizer, lr_mults=RULES, model=worlds.RESNET, **sections):
    optimizer = optimizer | {"lr_mults": lr_mults}
    made = worlds.config(
        model=model, optimizer=optimizer, comm={"bucket_mib": 0.001}, norm={"span": 1}, **sections
    )
    return Stage(worlds.steps(made, devices, microbatch))


def started(run):
    """The state that runs begin with, of random weights and statistics."""
    params, stats = reference.random_params(
        5, depth=6, width=4, channels=2, classes=worlds.CLASSES, dtype="float64"
    )
    fresh = jax.device_get(run.steps.to_checkpoint(run.init(np.int32(0))))
    ema = fresh.ema and fresh.ema._replace(params=params, stats=stats)
    return worlds.place(run, fresh._replace(params=params, stats=stats, ema=ema))


def trained(run):
    """The state after three steps as checkpoints hold it, and the norms of the gradients."""
    state, norms = started(run), []
    for step, rate in enumerate(RATES):
        images, labels = worlds.batch(step, run.steps.plan.samples_per_step)
        state, metrics = worlds.run_step(run, state, images, labels, rate)
        norms.append(float(metrics.gradient_norm))
    return jax.device_get(run.steps.to_checkpoint(state)), norms


def assert_close(found, expected):
    found, expected = flatten_paths(found), flatten_paths(expected)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        error = np.abs(found[path] - value).max() / np.abs(value).max()
        assert error < EQUAL, (path, error)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rule", ["lars_mlperf", pytest.param("sgd", marks=pytest.mark.slow)])
def test_equal_to_the_reference_and_bitwise_unchanged(rule):
    options = {"name": rule.partition("_")[0], "momentum": 0.9, "weight_decay": 1e-3}
    nesterov = rule == "sgd"
    run = programs(1, 8, options | ({"nesterov": True} if nesterov else {"epsilon": 1e-6}))
    plan, chosen = run.steps.plan, run.steps.plan.config
    assert set(run.steps.frozen) == {p for p in run.steps.multipliers if factor(p) == 0}
    state = started(run)
    first = jax.device_get((state.params, state.stats))
    params, stats = first
    velocity = jax.tree.map(np.zeros_like, params)
    for step, rate in enumerate(RATES):
        images, labels = worlds.batch(step, plan.samples_per_step)
        state, metrics = worlds.run_step(run, state, images, labels, rate)
        params, stats, velocity, gradients, loss, _ = reference.step(
            *(params, stats, velocity, images, labels),
            workers=plan.workers,
            span=1,
            depth=6,
            mean=worlds.MEAN,
            std=worlds.STD,
            epsilon=chosen.norm.epsilon,
            norm_momentum=0.9,
            unbiased=True,
            label_smoothing=chosen.loss.label_smoothing,
            factors=factor,
            optimizer=rule,
            learning_rate=rate,
            trust_coefficient=chosen.optimizer.trust_coefficient,
            lars_epsilon=1e-6,
            momentum=0.9,
            weight_decay=1e-3,
            nesterov=nesterov,
        )
        np.testing.assert_allclose(metrics.loss, loss, rtol=EQUAL)
        norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradients)))
        np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=EQUAL)
    got = jax.device_get(state)
    assert_close(got.params, params)
    assert_close(got.stats, stats)
    for before, after in zip(first, (got.params, got.stats), strict=True):
        after = flatten_paths(after)
        for path, value in flatten_paths(before).items():
            assert (after[path].tobytes() == value.tobytes()) == (factor(path) == 0), path
    moments = flatten_paths(got.optimizer.momentum)
    assert moments.keys() == {p for p in flatten_paths(got.params) if factor(p)}


OPTIMIZERS = {
    "lars": {"name": "lars"},
    "clipped": {"name": "sgd", "clip_norm": 0.1, "trust_coefficient": "auto"},
    "lamb": {"name": "lamb", "trust_coefficient": "auto", "epsilon": 1e-2},
    "adamw": {"name": "optax:adamw", "options": "eps=1e-3", "trust_coefficient": "auto"},
}


@functools.cache
def whole(name):
    return trained(programs(1, 8, OPTIMIZERS[name], schedule={"ema": "100 samples"}))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "devices", "update"),
    [
        ("clipped", 4, "sharded"),
        ("lars", 4, "replicated"),
        ("lars", 2, "sharded"),
        ("lamb", 4, "sharded"),
        ("adamw", 8, "sharded"),
    ],
)
def test_the_devices_do_not_matter(name, devices, update):
    made = programs(
        devices, 1, OPTIMIZERS[name] | {"update": update}, schedule={"ema": "100 samples"}
    )
    sizes = {p: x.size for p, x in flatten_paths(made.steps.model.shapes()[0]).items()}
    assert len(made.steps.buckets) > 1
    reduced = {path for bucket in made.steps.buckets for path in bucket.paths}
    assert reduced == {path for path in sizes if factor(path)}
    (state, norms), (state_, norms_) = trained(made), whole(name)
    np.testing.assert_allclose(norms, norms_, rtol=EQUAL)
    for one, other in ((state.params, state_.params), (state.stats, state_.stats)):
        assert_close(one, other)
    first = jax.device_get(started(made))
    for part in ("params", "stats"):
        assert_close(getattr(state.ema, part), getattr(state_.ema, part))
        average = flatten_paths(getattr(state.ema, part))
        for path, value in flatten_paths(getattr(first, part)).items():
            assert (average[path].tobytes() == value.tobytes()) == (factor(path) == 0)


def convolutions(lowered):
    return len(re.findall(r"stablehlo\.convolution", lowered.as_text()))


def test_backward_ends_at_the_first_trained_layer():
    """A head alone needs no convolution in backward, and no BatchNorm statistics of the batch."""
    with jax.enable_x64(True):
        made = programs(2, 1, {"name": "lars"}, lr_mults=("(?!head/).*: 0",))
        carry = made.steps.finish.lower(*made.finish_arguments)
        alone = made.steps.accumulate.lower(
            made.state.params, made.state.stats, made.carry, *made.images
        )
        images, labels = made._batch(worlds.SHAPE[:2])
        forward = made.steps.evaluate.lower(
            made.state.params, made.state.stats, images, labels, labels, None
        )
    assert convolutions(carry) == convolutions(alone) == convolutions(forward) > 5


CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 1},
    data={"source": "digits"},
    schedule={"length": "8 steps", "warmup": "2 steps", "peak": 1.0, "ema": "5 steps"},
    optimizer={"lr_mults": ("(stem|norm)/.*: 0",)},
    run={
        "log_every": "1 steps",
        "layers_every": "4 steps",
        "evaluate_every": "4 steps",
        "checkpoint_every": "4 steps",
    },
)


def train(config, workdir, devices=2, **request):
    devices = jax.devices()[:devices]
    return run(config, Request(recipe=None, workdir=workdir, **request), devices=devices)


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


@pytest.mark.parametrize("text", ["stems/.*: 0", "head: 0", ".*: 0", "stem: much", "(: 1"])
def test_patterns_that_are_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"optimizer\.lr_mults"):
        train(changed(CONFIG, optimizer__lr_mults=text), tmp_path)
