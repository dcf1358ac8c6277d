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
from largebatch.config import override
from largebatch.tracking import read_rows
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import EQUAL, assert_equal, trained

PAGE = Path(__file__).parents[2] / "docs" / "own_optimizer.md"
RATES = (0.03, 0.01, 0.02)
ADAMW = {"name": "optax:adamw", "options": "eps=1e-3", "trust_coefficient": "auto"}
LAMB = {"name": "optax:lamb", "trust_coefficient": "auto"}


def programs(devices, microbatch, **optimizer):
    """Of one convolution: which network it is does not matter to the rule."""
    made = worlds.config(model=worlds.SMALL_TWO, optimizer=optimizer)
    return Stage(worlds.steps(made, devices, microbatch))


@functools.cache
def whole(name):
    """The state that all begin with, and three steps of all workers on one device."""
    stage = programs(1, 8, **{"optax:adamw": ADAMW, "optax:lamb": LAMB}[name])
    begin = jax.device_get(stage.init(np.int32(0)))
    return begin, trained(stage, begin, RATES)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("rule", "devices", "update"),
    [
        (ADAMW, 4, "replicated"),
        (ADAMW, 8, "sharded"),
        pytest.param(LAMB, 4, "replicated", marks=pytest.mark.slow),
    ],
)
def test_the_devices_do_not_matter(rule, devices, update):
    begin, expected = whole(rule["name"])
    state, metrics = trained(programs(devices, 1, **rule, update=update), begin, RATES)
    assert_equal((state, metrics), expected)
    total = np.linalg.norm(state.optimizer.report.gradient_norm)
    np.testing.assert_allclose(total, metrics[-1].gradient_norm, rtol=EQUAL)


@pytest.mark.usefixtures("float64")
def test_moments_are_in_parts_and_counts_are_whole():
    adam = programs(4, 1, **ADAMW, update="sharded").state.optimizer.inner[0]
    assert adam.count.shape == ()
    assert adam.count.sharding.is_fully_replicated
    assert {x.shape[0] for x in jax.tree.leaves(adam.mu)} == {4}
    assert {x.sharding.shard_shape(x.shape)[0] for x in jax.tree.leaves(adam.mu)} == {1}


def test_the_example_of_the_page_trains(tmp_path, monkeypatch):
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n# my_rules\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_rules.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (command,) = re.findall(r"python train\.py (.*my_rules:(?:.*\\\n)*.*)\n", text)
    flags, _ = split_overrides([word for word in shlex.split(command) if "--config." in word])
    made = worlds.digits(8, 8, optimizer={"trust_coefficient": "auto"}, schedule={"peak": 0.01})
    for option, text in flags:
        made = override(made, option, text)
    worlds.train(made, tmp_path / "run", dry_run=True)
    worlds.train(made, tmp_path / "run")
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 8
