"""What a run does when its numbers, its data or its disk fail it."""

import contextlib
import dataclasses
import math

import jax
import numpy as np
import pytest

from largebatch.checkpoint.checkpoints import Checkpoints, option_differences, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.errors import HealthError
from largebatch.tracking import read_rows
from largebatch.training import loop
from tests.training import worlds
from tests.training.worlds import build, changed, digests, manifest, rows, slow, summary, train

STEPS = 12


def config(health=None, steps=STEPS, **sections):
    """Digits; checkpoints at 4, 8 and 12, evaluations at 6 and 12."""
    saving = {"evaluate_every": "6 steps", "keep_checkpoints": 9}
    return worlds.digits(
        steps,
        4,
        batch={"workers": 2, "images_per_worker": 20},
        norm={"statistics": "ema"},  # so that an evaluation leaves the state as it is
        schedule={"warmup": "3 steps", "peak": 0.5},
        run=saving | sections.pop("run", {}),
        health={"window": 5, "stuck_after": ""} | (health or {}),
        **sections,
    )


pytestmark = pytest.mark.usefixtures("built_once")


def faulty(monkeypatch, faults):
    """Have ``faults[step]`` change what the step is given: its images, labels and rates."""
    original = loop.run_step

    def run_step(stage, state, feed, rates, *rest):
        step = int(rates.step)
        if step not in faults:
            return original(stage, state, feed, rates, *rest)
        batch = next(feed)
        changed, rates = faults[step](batch, rates)
        return original(stage, state, iter([changed]), rates, *rest)

    monkeypatch.setattr(loop, "run_step", run_step)


def no_gradient(batch, rates):
    """A label that no class has: loss and gradient of this step alone are NaN."""
    return batch._replace(labels=batch.labels.at[0].set(10**6)), rates


def too_far(batch, rates):
    """The loss of this step is finite, the state that it leads to is not."""
    return batch, rates._replace(learning_rate=math.inf)


def events(workdir, *names):
    found = read_rows(workdir / "events.jsonl")
    return [(row["event"], row["step"]) for row in found if row["event"] in names]


def all_sound(workdir, made):
    """The steps of the checkpoints; each is verified and holds finite numbers only."""
    run, steps = build(made, devices=jax.devices()[:2]), sorted(steps_in(LocalPlace(workdir)))
    like = run.first_stage.checkpoint_shapes
    with contextlib.closing(Checkpoints(LocalPlace(workdir), keep=9, warn=pytest.fail)) as found:
        for step in steps:
            for leaf in jax.tree.leaves(found.read(step, run.plan, like).state):
                assert np.isfinite(leaf).all()
    return steps


def same_end(workdir, undisturbed):
    assert digests(workdir, STEPS) == digests(undisturbed, STEPS)
    assert rows(workdir) == rows(undisturbed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    assert train(config(), workdir).status == "complete"
    return workdir


@pytest.mark.parametrize(
    ("fault", "at", "kept"),
    [
        (no_gradient, 8, [4]),  # would be saved
        (no_gradient, 6, [4]),  # would be evaluated
        slow(too_far, 7, [4]),  # shows when step 8 is judged, which would be saved
        (too_far, 12, [4, 8]),
    ],
)
def test_stop(fault, at, kept, undisturbed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        faulty(patch, {at: fault})
        with pytest.raises(HealthError) as caught:
            train(config(), tmp_path)
    assert f"{tmp_path}/checkpoints/{kept[-1]}.safetensors" in str(caught.value)
    assert summary(tmp_path)["status"] == "failed"
    assert all_sound(tmp_path, config()) == kept
    assert train(config(), tmp_path).status == "complete"
    same_end(tmp_path, undisturbed)


SKIP = config({"policy": "skip"}, run={"checkpoint_every": "1 steps"})


def test_skip(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        faulty(patch, {5: no_gradient, 8: no_gradient})
        found = train(SKIP, tmp_path)
    assert (found.status, found.skips, found.steps) == ("complete", 2, STEPS)
    for step in (5, 8):
        arrays = digests(tmp_path, step)  # parameters, velocities and statistics
        assert {path.partition("/")[0] for path in arrays} >= {"params", "stats", "optimizer"}
        assert digests(tmp_path, step - 1) == arrays
        assert digests(tmp_path, step) != digests(tmp_path, step + 1)
    assert [manifest(tmp_path, s)["progress"]["skips"] for s in (4, 5, 7, 8)] == [0, 1, 1, 2]
    assert events(tmp_path, "skipped") == [("skipped", 5), ("skipped", 8)]
    assert math.isfinite(rows(tmp_path)[-1]["loss"])


ROLL = config({"policy": "rollback"})


@pytest.mark.parametrize(
    ("fault", "at", "back_to", "saved_at"),
    [
        (no_gradient, 7, 4, 8),  # seen with step 8 under way, which is dropped
        slow(no_gradient, 8, 4, 8),  # would be saved
        slow(too_far, 8, 4, 8),
        (too_far, 9, 8, 11),
        slow(too_far, 12, 8, 12),
    ],
)
def test_rollback(fault, at, back_to, saved_at, undisturbed, tmp_path, monkeypatch):
    faulty(monkeypatch, {at: fault})
    found = train(ROLL, tmp_path)
    assert (found.status, found.rollbacks, found.steps) == ("complete", 1, STEPS)
    assert math.isfinite(found.loss)
    assert digests(tmp_path, saved_at) == digests(undisturbed, back_to)
    assert manifest(tmp_path, saved_at)["progress"]["rollbacks"] == 1
    # What is trained on moves on: each step has the examples that it has without trouble.
    expected = {row["step"]: row["fingerprint"] for row in rows(undisturbed)}
    seen = {row["step"]: row["fingerprint"] for row in rows(tmp_path)}
    assert seen.items() <= expected.items()
    assert len(seen) >= STEPS - 1  # of a step that is dropped there is nothing to say
    assert set(all_sound(tmp_path, ROLL)) == {4, 8, 12, saved_at}


REPLAY = config({"replay_every": "3 steps"})


def test_replay_names_what_was_tampered_with(undisturbed, tmp_path, monkeypatch):
    original = loop.run_step

    def tampered(stage, state, feed, rates, *others):
        state, metrics = original(stage, state, feed, rates, *others)
        if int(rates.step) == 6 and not others:  # the second time
            head = state.params["head"]
            kernel = head["kernel"] + jax.device_put(np.float32(1e-3), head["kernel"].sharding)
            state = state._replace(params=state.params | {"head": head | {"kernel": kernel}})
        return state, metrics

    monkeypatch.setattr(loop, "run_step", tampered)
    assert train(REPLAY, tmp_path).status == "complete"
    same_end(tmp_path, undisturbed)  # the second result is compared and thrown away
    found = {r["step"]: r for r in read_rows(tmp_path / "events.jsonl") if r["event"] == "replay"}
    assert found[6]["names"] == ["params/head/kernel"]
    assert [step for step, row in found.items() if "names" in row] == [6]


@pytest.mark.parametrize(
    ("then", "now", "known", "changes"),
    [
        ("tfrecord:/data/set", "tfrecord:s3://bucket/set", 5, False),
        ("webdataset:/a/*.tar", "webdataset:/b", 5, False),
        ("tfrecord:/data/set", "tfrecord:s3://bucket/set", 0, True),
        ("tfrecord:/data/set", "webdataset:/data/set", 5, True),
    ],
)
def test_the_same_shards_in_another_place_are_the_same_data(then, now, known, changes):
    facts = Facts(1437, 360, 10, (8, 8, 1), devices=2, identity=3, content=known)
    earlier, plan = changed(config(), data__source=then), changed(config(), data__source=now)
    plan = resolve(plan, facts)
    for change, expected in (({}, changes), ({"content": 6}, True), ({"identity": 4}, True)):
        (found,) = option_differences(earlier, dataclasses.replace(facts, **change), plan)
        assert (found.key, found.mathematics) == ("data.source", expected)
