"""layers.jsonl: its numbers, and that no step waits for them."""

import math

import jax
import numpy as np
import pytest

from largebatch.optim import LayerReport
from largebatch.tracking import read_rows
from largebatch.training.layer_rows import layer_reader
from largebatch.training.log import Log
from largebatch.training.session import Request, run
from largebatch.training.stage import stage_at
from largebatch.trees import flatten_paths
from tests.training import worlds
from tests.training.worlds import changed

STEPS = "5 steps"
CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 4, "microbatch": 8},
    data={"source": "digits"},
    schedule={"length": STEPS, "warmup": "2 steps", "peak": 0.5},
    run={"layers_every": "1 steps", "evaluate_every": STEPS, "checkpoint_every": "100 steps"},
)


def test_rows_by_hand():
    report = LayerReport(*(np.float32([i, i + 0.5]) for i in range(3)))
    params = {"b": np.zeros(2), "a": {"bn": {"scale": np.zeros(3)}}}
    stats = {"a": {"bn": {"mean": np.float32([3, 4]), "var": np.float32([1, 4])}}}
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves((report, stats))])
    found = layer_reader(report, params, stats)(numbers)
    assert found["a/bn/scale"] == {"trust_ratio": 0, "weight_norm": 1, "gradient_norm": 2}
    assert found["b"] == {"trust_ratio": 0.5, "weight_norm": 1.5, "gradient_norm": 2.5}
    assert found["a/bn"] == pytest.approx(
        {"running_mean": math.sqrt(12.5), "running_variance": 2.0}, rel=1e-6
    )


def expected(state, stage):
    """The row of a state, from arrays that are copied one by one."""
    state = jax.device_get(state)
    rows = {}
    for i, path in enumerate(flatten_paths(stage.steps.trained(state.params))):
        rows[path] = {name: float(x[i]) for name, x in state.optimizer.report._asdict().items()}
    flat = flatten_paths(state.stats)
    for path, mean in flat.items():
        if path.endswith("/mean"):
            variance = np.maximum(flat[f"{path[:-4]}var"], np.finfo(np.float32).tiny)
            rows[path.removesuffix("/mean")] = {
                "running_mean": float(np.sqrt(np.mean(np.square(mean, dtype=np.float64)))),
                "running_variance": float(np.exp(np.mean(np.log(variance)))),
            }
    return rows


@pytest.fixture
def waiting(monkeypatch):
    """Rows as a loop that waits for each step would write them, in the order of the calls."""
    found, original = {}, Log.layers

    def layers(log, step, state):
        found[step] = expected(state, stage_at(log._stages, step))
        original(log, step, state)

    monkeypatch.setattr(Log, "layers", layers)
    return found


def train(config, workdir):
    with worlds.built_once():
        return run(config, Request(recipe=None, workdir=workdir), devices=jax.devices()[:1])


def test_rows_equal_those_of_a_loop_that_waits(tmp_path, waiting):
    """At every step, also before and after a stop, and at the last one."""
    with worlds.built_once():
        train(changed(CONFIG, run__stop_after="2 steps"), tmp_path)
        assert [row["step"] for row in read_rows(tmp_path / "layers.jsonl")] == [1, 2]
        train(CONFIG, tmp_path)
    rows = read_rows(tmp_path / "layers.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["step"]: row["layers"] for row in rows} == waiting
