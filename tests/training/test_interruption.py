"""A run that is interrupted anywhere saves a checkpoint and resumes to the same end."""

import os
import signal
import threading
import time

import jax
import pytest

from largebatch.fault_tolerance import Interrupted, Watchdog
from largebatch.tracking import read_rows
from largebatch.training import evaluation, loop, session
from largebatch.training.run import Run
from largebatch.training.session import Request
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import digests, rows

CONFIG = worlds.config(
    model=worlds.SMALL,
    batch={"workers": 8, "images_per_worker": 10, "microbatch": 2},  # two microbatches a step
    data={"source": "digits", "shift": 1},
    schedule={"length": "12 steps", "warmup": "3 steps", "peak": 1.0},
    run={"log_every": "1 steps", "evaluate_every": "4 steps", "checkpoint_every": "5 steps"},
)
WATCHDOGS = []


@pytest.fixture(scope="module", autouse=True)
def _built_once():
    with worlds.built_once():
        yield


def train(workdir):
    request = Request(recipe=workdir, workdir=workdir)
    with Watchdog().watching() as watchdog:
        WATCHDOGS.append(watchdog)
        return session.run(CONFIG, request, devices=jax.devices()[:2], watchdog=watchdog)


def interrupted(workdir):
    """Train until told to stop; the summary that is left behind."""
    with pytest.raises(Interrupted, match="SIGTERM"):
        train(workdir)
    summary = worlds.summary(workdir)
    assert summary["status"] == "preempted"
    return summary


def interrupt():
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


def resumes_to_the_same_end(workdir, uninterrupted):
    assert train(workdir).status == "complete"
    assert digests(workdir, 12) == digests(uninterrupted, 12)
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
    after_calls(monkeypatch, loop, "run_step", 7, interrupt)
    summary = interrupted(tmp_path)
    # Step 7 had not begun to compute: it is not waited for.
    assert summary["steps"] == 6
    assert (tmp_path / "checkpoints" / "6.safetensors").exists()
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 7))
    events = [row["event"] for row in read_rows(tmp_path / "events.jsonl")]
    assert events[-3:] == ["preempted", "checkpoint", "times"]
    resumes_to_the_same_end(tmp_path, uninterrupted)


def test_in_an_evaluation_which_is_then_repeated(uninterrupted, tmp_path, monkeypatch):
    after_calls(monkeypatch, evaluation, "evaluate_batch", 2, interrupt)
    summary = interrupted(tmp_path)
    assert summary["steps"] == 3  # of step 4 the evaluation is missing
    assert (tmp_path / "checkpoints" / "4.safetensors").exists()
    assert rows(tmp_path)[-1]["step"] == 3
    resumes_to_the_same_end(tmp_path, uninterrupted)


def test_a_last_evaluation_is_repeated_once(uninterrupted, tmp_path, monkeypatch):
    batches = -(-360 // 40)  # of the validation split
    after_calls(monkeypatch, evaluation, "evaluate_batch", 2 * batches + 2, interrupt)
    interrupted(tmp_path)  # in the last one
    assert worlds.manifest(tmp_path, 12)["progress"]["evaluation_due"] == 1
    resumes_to_the_same_end(tmp_path, uninterrupted)
    assert worlds.manifest(tmp_path, 12)["progress"]["evaluation_due"] == 0
    monkeypatch.setattr(Run, "build", pytest.fail)  # the run is complete
    resumes_to_the_same_end(tmp_path, uninterrupted)


def test_while_it_waits_for_data(uninterrupted, tmp_path, monkeypatch):
    release, steps = threading.Event(), []
    original, run_step = Stage.local_microbatches, loop.run_step

    def counted(*arguments, **options):
        steps.append(1)
        return run_step(*arguments, **options)

    def stalls(run, start, stop):
        for microbatch in original(run, start, stop):
            if microbatch.position >= 6 * 80:
                if not release.is_set():
                    until(lambda: len(steps) > 6)  # the trainer has used what was read ahead
                    interrupt()
                release.wait(600)
            yield microbatch

    monkeypatch.setattr(Stage, "local_microbatches", stalls)
    monkeypatch.setattr(loop, "run_step", counted)
    summary = interrupted(tmp_path)
    assert summary["steps"] == 6  # all that there was data for
    release.set()
    resumes_to_the_same_end(tmp_path, uninterrupted)
