"""What each attempt at a run records: events, times, layers, a trace."""

import gzip
import json
import math

import jax
import numpy as np
import pytest

from largebatch.config import durations
from largebatch.errors import ConfigError
from largebatch.optim import LayerReport
from largebatch.tracking import read_rows
from largebatch.training.layer_rows import layer_reader
from largebatch.training.log import Log
from largebatch.training.stage import stage_at
from largebatch.trees import flatten_paths
from tests.training import worlds
from tests.training.worlds import changed, train

CONFIG = worlds.digits(6, 3, run={"layers_every": "1 steps", "target": 0.0001})


def layers_of(state, stage):
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


@pytest.fixture(scope="module")
def two_attempts(tmp_path_factory):
    """A run that was stopped; its layers as a loop that waits for each step would write them."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    waiting, original = {}, Log.layers

    def layers(log, step, state):
        waiting[step] = layers_of(state, stage_at(log._stages, step))
        original(log, step, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "layers", layers)
        train(changed(CONFIG, run__stop_after="3 steps"), workdir, devices=1)
        summary = train(changed(CONFIG, run__profile="5:6"), workdir, devices=1)
    return workdir, summary, waiting


def test_events_of_two_attempts(two_attempts):
    workdir, _, _ = two_attempts
    events = read_rows(workdir / "events.jsonl")
    attempts = [row for row in events if row["event"] == "attempt"]
    assert [row["step"] for row in attempts] == [0, 3]
    times = {row["step"]: row for row in events if row["event"] == "times"}
    assert times.keys() == {3, 6}
    for row in times.values():
        assert 0 <= row["wait_s"] <= row["train_s"]
        assert row["other_s"] >= 0
    # Each attempt counts for itself.
    rows = read_rows(workdir / "metrics.jsonl")
    assert times[6]["train_s"] < rows[-1]["seconds"] - rows[2]["seconds"]


def test_the_target_is_that_of_the_first_attempt(two_attempts):
    workdir, summary, _ = two_attempts
    assert (summary.target_top1, summary.target_step) == (0.0001, 3)
    reached = read_rows(workdir / "metrics.jsonl")[2]["seconds"]
    assert summary.target_s == pytest.approx(reached, abs=1.0)


def test_rows_of_layers_equal_those_of_a_loop_that_waits(two_attempts):
    """At every step, also before and after a stop, and at the last one."""
    workdir, _, waiting = two_attempts
    rows = read_rows(workdir / "layers.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row["step"]: row["layers"] for row in rows} == waiting


def test_rows_of_layers_by_hand():
    report = LayerReport(*(np.float32([i, i + 0.5]) for i in range(3)))
    params = {"b": np.zeros(2), "a": {"bn": {"scale": np.zeros(3)}}}
    stats = {"a": {"bn": {"mean": np.float32([3, 4]), "var": np.float32([1, 4])}}}
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves((report, stats))])
    found = layer_reader(report, params, stats)(numbers)
    assert found["a/bn/scale"] == {"trust_ratio": 0, "weight_norm": 1, "gradient_norm": 2}
    assert found["b"] == {"trust_ratio": 0.5, "weight_norm": 1.5, "gradient_norm": 2.5}
    statistics = {"running_mean": math.sqrt(12.5), "running_variance": 2.0}
    assert found["a/bn"] == pytest.approx(statistics, rel=1e-6)


def test_the_trace_has_its_steps_only(two_attempts):
    workdir, _, _ = two_attempts
    (trace,) = workdir.glob("profile/plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    found = {
        event["args"]["hlo_module"] for event in events if "hlo_module" in event.get("args", {})
    }
    assert any("finish" in name for name in found)
    # An evaluation and a checkpoint follow the last of them.
    assert not any(word in name for name in found for word in ("evaluate", "stored", "finite"))


def test_a_complete_run_is_left_alone(two_attempts):
    workdir, summary, _ = two_attempts
    kept = {path: path.read_bytes() for path in workdir.iterdir() if path.is_file()}
    assert train(CONFIG, workdir, devices=1) == summary
    assert {path: path.read_bytes() for path in kept} == kept
    # Asking a complete run to stop early does not make it less complete.
    again = train(changed(CONFIG, run__stop_after="2 steps"), workdir, devices=1)
    assert again.status == "complete"


def test_a_range_of_steps():
    assert durations.step_range("", "run.profile", 9) is None
    assert durations.step_range("2:9", "run.profile", 9) == (2, 9)
    for text in ("2", "a:b", "0:2", "3:2", "5:10"):
        with pytest.raises(ConfigError, match=r"run\.profile"):
            durations.step_range(text, "run.profile", 9)
