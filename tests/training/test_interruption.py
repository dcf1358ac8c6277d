"""A run that is told to stop, wherever it is: what it saves, and that it comes to the same end."""

import json
import os
import signal
import threading
import time

import jax
import pytest

from largebatch.fault_tolerance import Interrupted, Watchdog
from largebatch.tracking import read_rows
from largebatch.training import evaluation, loop, session
from largebatch.training.session import Request
from largebatch.training.setup import StageRun
from tests.training import worlds

TIMES = {"images_per_s", "input_wait", "seconds"}
CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 2},  # two microbatches a step
    data={"source": "digits", "shift": 1},
    schedule={"length": "12 steps", "warmup": "3 steps", "peak": 1.0},
    run={"log_every": "1 steps", "evaluate_every": "4 steps", "checkpoint_every": "5 steps"},
)


WATCHDOGS = []


def train(workdir):
    request = Request(recipe=workdir, workdir=workdir)
    with Watchdog().watching() as watchdog:
        WATCHDOGS.append(watchdog)
        return session.run(CONFIG, request, devices=jax.devices()[:2], watchdog=watchdog)


def interrupted(workdir):
    """Train until told to stop; the summary that is left behind."""
    with pytest.raises(Interrupted, match="SIGTERM"):
        train(workdir)
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["status"] == "preempted"
    return summary


def rows(workdir):
    found = read_rows(workdir / "metrics.jsonl")
    return [{key: v for key, v in row.items() if key not in TIMES} for row in found]


def digests(workdir):
    text = (workdir / "checkpoints" / "12" / "manifest.json").read_text()
    return {path: array["digest"] for path, array in json.loads(text)["arrays"].items()}


def tell_to_stop():
    """A signal, as a cluster sends it; returns when the watchdog's thread has seen it."""
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: WATCHDOGS[-1].requested)


def until(condition):
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    assert train(workdir).status == "complete"
    return workdir


def goes_on_to_the_same_end(workdir, uninterrupted):
    assert train(workdir).status == "complete"
    assert digests(workdir) == digests(uninterrupted)
    assert rows(workdir) == rows(uninterrupted)


def after_calls(monkeypatch, owner, name, calls, action):
    """Have ``owner.name`` call ``action`` before its call of this number, from 1."""
    function, done = getattr(owner, name), [0]

    def wrapped(*arguments, **options):
        done[0] += 1
        if done[0] == calls:
            action()
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


def test_in_a_step(uninterrupted, tmp_path, monkeypatch):
    after_calls(monkeypatch, loop, "run_step", 7, tell_to_stop)
    summary = interrupted(tmp_path)
    # Step 7 had not begun to compute: it is not waited for.
    assert summary["steps"] == 6
    assert (tmp_path / "checkpoints" / "6").is_dir()
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 7))
    events = [row["event"] for row in read_rows(tmp_path / "events.jsonl")]
    assert events[-3:] == ["preempted", "checkpoint", "times"]
    goes_on_to_the_same_end(tmp_path, uninterrupted)


def test_between_microbatches(uninterrupted, tmp_path, monkeypatch):
    # Each step takes its carry once before its two microbatches.
    after_calls(monkeypatch, loop.Health, "look", 3, tell_to_stop)
    summary = interrupted(tmp_path)
    assert 3 <= summary["steps"] <= 4
    goes_on_to_the_same_end(tmp_path, uninterrupted)


def test_in_an_evaluation_which_is_then_made_up_for(uninterrupted, tmp_path, monkeypatch):
    after_calls(monkeypatch, evaluation, "evaluate_batch", 2, tell_to_stop)
    summary = interrupted(tmp_path)
    assert summary["steps"] == 3  # of step 4 the evaluation is missing
    assert (tmp_path / "checkpoints" / "4").is_dir()
    assert rows(tmp_path)[-1]["step"] == 3
    goes_on_to_the_same_end(tmp_path, uninterrupted)


def test_a_last_evaluation_is_made_up_for_once(uninterrupted, tmp_path, monkeypatch):
    batches = -(-360 // 40)  # of the validation split
    after_calls(monkeypatch, evaluation, "evaluate_batch", 2 * batches + 2, tell_to_stop)
    interrupted(tmp_path)  # in the last one
    checkpoint = tmp_path / "checkpoints" / "12" / "manifest.json"
    assert json.loads(checkpoint.read_text())["progress"]["evaluation_due"] == 1
    goes_on_to_the_same_end(tmp_path, uninterrupted)
    assert json.loads(checkpoint.read_text())["progress"]["evaluation_due"] == 0
    monkeypatch.setattr(session.OpenedRun, "build", pytest.fail)  # the run is complete
    goes_on_to_the_same_end(tmp_path, uninterrupted)


def test_while_it_waits_for_data(uninterrupted, tmp_path, monkeypatch):
    release, steps = threading.Event(), []
    original, run_step = StageRun.local_microbatches, loop.run_step

    def counted(*arguments, **options):
        steps.append(1)
        return run_step(*arguments, **options)

    def stalls(run, start, stop):
        for microbatch in original(run, start, stop):
            if microbatch.position >= 6 * 80:
                if not release.is_set():
                    until(lambda: len(steps) > 6)  # the trainer has used what was read ahead
                    tell_to_stop()
                release.wait(600)
            yield microbatch

    monkeypatch.setattr(StageRun, "local_microbatches", stalls)
    monkeypatch.setattr(loop, "run_step", counted)
    summary = interrupted(tmp_path)
    assert summary["steps"] == 6  # all that there was data for
    release.set()
    goes_on_to_the_same_end(tmp_path, uninterrupted)


def test_what_is_saved_already_is_not_saved_again(uninterrupted, tmp_path, monkeypatch):
    after_calls(monkeypatch, loop, "run_step", 6, tell_to_stop)  # behind the checkpoint of step 5
    assert interrupted(tmp_path)["steps"] == 5
    goes_on_to_the_same_end(tmp_path, uninterrupted)
