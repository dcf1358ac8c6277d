"""Training with transformations of optax and of the user: devices, sharding, resuming."""

import functools
import re
import shlex
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from largebatch.cli import split_overrides
from largebatch.config import load
from largebatch.optim import by_path, path_names
from largebatch.tracking import read_rows
from largebatch.training.session import Request, run
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import digests

PAGE = Path(__file__).parents[2] / "docs" / "own_optimizer.md"
EQUAL = 1e-10
ADAMW = {"name": "optax:adamw", "options": "eps=1e-3", "trust_coefficient": "auto"}
LAMB = {"name": "optax:lamb", "trust_coefficient": "auto"}


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def programs(devices, microbatch, **optimizer):
    """Of one convolution: which network it is does not matter to the rule."""
    made = worlds.config(model=worlds.SMALL_TWO, optimizer=optimizer)
    return Stage(worlds.steps(made, devices, microbatch))


def trained(devices, microbatch, **optimizer):
    """The state after three steps as checkpoints hold it, and the gradients' norms."""
    made = programs(devices, microbatch, **optimizer)
    state = made.init(np.int32(0))
    norms = []
    for step in range(3):
        images, labels = worlds.batch(step, made.steps.plan.samples_per_step)
        state, metrics = worlds.run_step(made, state, images, labels, (0.03, 0.01, 0.02)[step])
        norms.append(float(metrics.gradient_norm))
    return jax.device_get(made.steps.to_checkpoint(state)), norms


def assert_equal(found, expected):
    (state, norms), (state_, norms_) = found, expected
    np.testing.assert_allclose(norms, norms_, rtol=EQUAL)
    assert jax.tree.structure(state) == jax.tree.structure(state_)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(state_), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=0, atol=EQUAL * max(np.abs(other).max(), 1e-30))


@functools.cache
def whole(name):
    return trained(1, 8, **{"optax:adamw": ADAMW, "optax:lamb": LAMB}[name])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "rule", [ADAMW, pytest.param(LAMB, marks=pytest.mark.slow)], ids=["adamw", "lamb"]
)
def test_the_devices_do_not_matter(rule):
    found = trained(4, 1, **rule)
    assert_equal(found, whole(rule["name"]))
    state, norms = found
    rows = by_path(state.optimizer.report, jax.tree.leaves(path_names(state.params)))
    total = np.sqrt(sum(row["gradient_norm"] ** 2 for row in rows.values()))
    np.testing.assert_allclose(total, norms[-1], rtol=EQUAL)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_an_elementwise_update_may_be_sharded(devices):
    assert_equal(trained(devices, 1, **ADAMW, update="sharded"), whole("optax:adamw"))


@pytest.mark.usefixtures("float64")
def test_moments_are_in_parts_and_counts_are_whole():
    adam = programs(4, 1, **ADAMW, update="sharded").state.optimizer.inner[0]
    assert adam.count.shape == ()
    assert adam.count.sharding.is_fully_replicated
    assert {x.shape[0] for x in jax.tree.leaves(adam.mu)} == {4}
    assert {x.sharding.shard_shape(x.shape)[0] for x in jax.tree.leaves(adam.mu)} == {1}


FLAGS = [
    *((f"model.{name}", str(value)) for name, value in worlds.SMALL.items()),
    *(("schedule.length", "8 steps"), ("schedule.warmup", "2 steps"), ("schedule.peak", "0.01")),
    *(("optimizer.trust_coefficient", "auto"), ("run.checkpoint_every", "3 steps")),
    *(("run.evaluate_every", "8 steps"), ("run.log_every", "1 steps")),
    ("run.layers_every", "4 steps"),
]


def train(workdir, *flags, devices=1, **request):
    config = load("digits", [*FLAGS, *flags])
    run(config, Request(Path("digits"), workdir, **request), devices=jax.devices()[:devices])


@pytest.mark.slow
def test_a_resumed_run_is_bitwise_the_same(tmp_path):
    flags = [
        ("optimizer.name", "optax:adamw"),
        ("optimizer.options", "mu_dtype='bfloat16'"),
        ("optimizer.update", "sharded"),
    ]
    once, twice = tmp_path / "once", tmp_path / "twice"
    train(once, *flags, devices=2)
    train(twice, *flags, ("run.stop_after", "5 steps"), devices=2)
    train(twice, *flags, devices=2)
    assert digests(twice, 8) == digests(once, 8)
    assert {"optimizer/inner/0/count", "optimizer/inner/0/mu/head/bias"} <= digests(once, 8).keys()
    rows = [read_rows(w / "metrics.jsonl") for w in (once, twice)]
    norms = [[row["gradient_norm"] for row in each] for each in rows]
    assert norms[0] == norms[1]
    assert all("momentum" not in row for each in rows for row in each)
    layers = read_rows(once / "layers.jsonl")[-1]["layers"]
    assert layers["head/bias"]["trust_ratio"] == 1
    assert layers["head/bias"]["gradient_norm"] > 0


def test_the_example_of_the_page_trains(tmp_path, monkeypatch):
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n# my_rules\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_rules.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (command,) = re.findall(r"python train\.py (.*my_rules:(?:.*\\\n)*.*)\n", text)
    flags, _ = split_overrides([word for word in shlex.split(command) if "--config." in word])
    train(tmp_path / "run", *flags, dry_run=True)
    train(tmp_path / "run", *flags)
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 8
