"""What each attempt at a run records: events, times, layers, a trace."""

import gzip
import json

import jax
import pytest

from largebatch.config import durations
from largebatch.errors import ConfigError
from largebatch.tracking import read_rows
from largebatch.training.session import Request, run
from tests.training import worlds
from tests.training.worlds import changed

CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 4, "microbatch": 8},
    data={"source": "digits"},
    schedule={"length": "6 steps", "warmup": "2 steps", "peak": 0.5},
    run={
        "log_every": "1 steps",
        "layers_every": "3 steps",
        "evaluate_every": "3 steps",
        "checkpoint_every": "3 steps",
        "target": 0.0001,
    },
)


def train(config, workdir):
    return run(config, Request(recipe=workdir, workdir=workdir), devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def two_attempts(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    train(changed(CONFIG, run__stop_after="3 steps"), workdir)
    return workdir, train(changed(CONFIG, run__profile="5:6"), workdir)


def test_events_of_two_attempts(two_attempts):
    workdir, _ = two_attempts
    events = read_rows(workdir / "events.jsonl")
    attempts = [row for row in events if row["event"] == "attempt"]
    assert [row["step"] for row in attempts] == [0, 3]
    times = [row for row in events if row["event"] == "times"]
    assert {row["step"] for row in times} == {3, 6}
    for row in times:
        assert 0 <= row["wait_s"] <= row["train_s"]
        assert row["other_s"] >= 0
    # Each attempt counts for itself.
    second = next(row for row in times if row["step"] == 6)
    rows = read_rows(workdir / "metrics.jsonl")
    assert second["train_s"] < rows[-1]["seconds"] - rows[2]["seconds"]


def test_the_target_is_that_of_the_first_attempt(two_attempts):
    workdir, summary = two_attempts
    assert (summary.target_top1, summary.target_step) == (0.0001, 3)
    assert summary.target_s == pytest.approx(
        read_rows(workdir / "metrics.jsonl")[2]["seconds"], abs=1.0
    )


def test_the_trace_has_its_steps_only(two_attempts):
    workdir, _ = two_attempts
    (trace,) = workdir.glob("profile/plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    found = {
        event["args"]["hlo_module"] for event in events if "hlo_module" in event.get("args", {})
    }
    assert any("finish" in name for name in found)
    # An evaluation and a checkpoint follow the last of them.
    assert not any(word in name for word in ("evaluate", "stored", "finite") for name in found)


def test_a_complete_run_is_left_alone(two_attempts):
    workdir, summary = two_attempts
    kept = {path: path.read_bytes() for path in workdir.iterdir() if path.is_file()}
    assert train(CONFIG, workdir) == summary
    assert {path: path.read_bytes() for path in kept} == kept
    # Asking a complete run to stop early does not make it less complete.
    assert train(changed(CONFIG, run__stop_after="2 steps"), workdir).status == "complete"


def test_a_range_of_steps():
    assert durations.step_range("", "run.profile", 9) is None
    assert durations.step_range("2:9", "run.profile", 9) == (2, 9)
    for text in ("2", "a:b", "0:2", "3:2", "5:10"):
        with pytest.raises(ConfigError, match=r"run\.profile"):
            durations.step_range(text, "run.profile", 9)
