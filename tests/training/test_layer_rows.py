"""layers.jsonl: its numbers, and that no step waits for them."""

import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from largebatch.checkpoint.file import Progress
from largebatch.optim import LayerReport
from largebatch.tracking import read_rows
from largebatch.training import loop as loops
from largebatch.training.layer_rows import layer_reader
from largebatch.training.log import Log
from largebatch.training.session import Request, run
from largebatch.training.stage import stage_at
from largebatch.training.state import Metrics, TrainState
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


@pytest.mark.parametrize("size", [1, 7, 64, 129, 2048])
def test_each_layer_gets_the_bits_of_its_own_arrays(size):
    draw = np.random.default_rng(size)
    stats = {
        name: {
            "mean": draw.normal(size=size + i).astype(np.float32),
            "var": (draw.normal(size=size + i) ** 2 * 10.0 ** draw.integers(-44, 3)).astype("f"),
        }
        for i, name in enumerate("abc")
    }
    numbers = np.concatenate([np.ones(3, np.float32), *jax.tree.leaves(stats)])
    report, params = LayerReport(*[np.ones(1, np.float32)] * 3), {"w": np.ones(1)}
    found = layer_reader(report, params, stats)(numbers)
    for name, layer in stats.items():
        squares = np.square(layer["mean"], dtype=np.float64)
        logarithms = np.log(np.maximum(layer["var"], np.finfo(np.float32).tiny))
        assert found[name] == {
            "running_mean": float(np.sqrt(np.mean(squares))),
            "running_variance": float(np.exp(np.mean(logarithms))),
        }


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


def test_the_copy_to_the_host_starts_at_once():
    calls, plain = [], SimpleNamespace
    numbers = plain(copy_to_host_async=lambda: calls.append("copy"))
    stage = plain(plan=plain(first_step=0), layer_report=lambda report, stats: numbers)
    Log(None, [stage], print).layers(1, TrainState({}, {}, plain(report=None)))
    assert calls == ["copy"]


class Order:
    """Records what was written, in order."""

    def __init__(self, calls):
        self.calls = calls

    def scalars(self, step, values):
        pass

    def layers(self, step, samples, values):
        self.calls.append(f"layers {step}")

    def flush(self):
        pass

    def close(self):
        pass

    def event(self, name, step, samples, **values):
        if name in ("step", "checkpoint", "unhealthy"):
            self.calls.append(f"{name} {step}")


def test_the_row_of_a_step_is_written_after_the_next_is_dispatched(tmp_path, monkeypatch):
    calls, dispatch = [], loops.run_step

    def recorded(stage, state, feed, rates, *others):
        calls.append(f"dispatch {int(rates.step)}")
        return dispatch(stage, state, feed, rates, *others)

    monkeypatch.setattr(loops, "run_step", recorded)

    def opened(log, *arguments, **options):
        log.files = Order(calls)
        log.trackers = (log.files,)

    monkeypatch.setattr(Log, "open", opened)
    train(changed(CONFIG, schedule__length="3 steps"), tmp_path)
    assert calls == [
        *("dispatch 1", "dispatch 2", "layers 1", "step 1", "dispatch 3", "layers 2", "step 2"),
        *("layers 3", "checkpoint 3", "step 3"),
    ]


def test_the_end_of_a_step_is_noted_while_the_next_is_dispatched(tmp_path, monkeypatch):
    """Its row comes later, and must not count the time of the next step's microbatches."""
    calls, dispatch, note = [], loops.run_step, Log.ended

    def recorded(stage, state, feed, rates, *others):
        found = dispatch(stage, state, feed, rates, *others)
        calls.append(f"dispatched {int(rates.step)}")
        return found

    def noted(log, step):
        if f"ended {step}" not in calls:
            calls.append(f"ended {step}")
        note(log, step)

    monkeypatch.setattr(loops, "run_step", recorded)
    monkeypatch.setattr(Log, "ended", noted)
    train(
        changed(
            CONFIG,
            batch__microbatch="1",
            schedule__length="3 steps",
            run__evaluate_every="3 steps",
            run__log_every="1 steps",
        ),
        tmp_path,
    )
    order = ("dispatched 1", "ended 1", "dispatched 2", "ended 2", "dispatched 3", "ended 3")
    assert tuple(calls) == order


def test_a_row_has_the_time_at_which_its_step_ended(monkeypatch):
    now = [10.0]
    clock = SimpleNamespace(train_s=0.0, wait_s=0.0, now=lambda: now[0], wall_s=lambda: now[0])
    rows = []
    tracker = SimpleNamespace(scalars=lambda step, values: rows.append(values))
    plan = SimpleNamespace(
        position=lambda step: 100 * step,
        stage_at=lambda step: SimpleNamespace(
            log_every=1, samples_per_step=100, facts=SimpleNamespace(image_shape=(8, 8, 1))
        ),
        is_due=lambda step, every: True,
        rates=lambda step: SimpleNamespace(learning_rate=0.1, momentum=0.9),
        config=CONFIG,
    )
    log = Log(plan, (), print)
    log.trackers = (tracker,)
    log.begin(clock, Progress())
    monkeypatch.setattr(log, "_fingerprint", lambda step: "")
    monkeypatch.setattr(log, "epoch", lambda step: 0.0)
    metrics = Metrics(np.zeros(4, np.float32))
    log.ended(1)  # at 10 s
    now[0], clock.wait_s = 15.0, 1.0
    log.step(1, metrics)  # while step 2 is computed
    log.step(2, metrics)  # ends now
    assert [row["images_per_s"] for row in rows] == [10.0, 20.0]
    assert [row["input_wait"] for row in rows] == [0.0, 0.2]
