import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from largebatch.training.programs import Programs
from largebatch.training.replay import Difference, Replay
from largebatch.training.state import Metrics
from tests.training import worlds
from tests.training.worlds import ROOT

HOSTS = ("node14",)


@pytest.fixture(scope="module")
def twice():
    """A step of two microbatches with a sharded update, and the same from a copy of the state."""
    config = worlds.config(
        model=worlds.RESNET,
        batch={"workers": 4, "images_per_worker": 2},
        optimizer={"update": "sharded"},
    )
    steps = worlds.steps(config, 2, 1, "float32")
    programs = Programs(steps)
    assert programs.steps.plan.microbatches == 2
    replay = Replay(programs.steps, HOSTS)
    state = programs.steps.init(np.int32(0))
    kept, batch = replay.copied(state), worlds.batch(0, programs.steps.plan.samples_per_step)
    first = worlds.run_step(programs, state, *batch, rate=1.0)
    assert state.params["head"]["bias"].is_deleted()  # the step took it, and left the copy
    return replay, first, worlds.run_step(programs, kept, *batch, rate=1.0)


def corrupted(array, device, index, change):
    """The array, with a value changed where one device holds it."""
    parts = [np.array(shard.data) for shard in array.addressable_shards]
    parts[device].flat[index] = change(parts[device].flat[index])
    placed = [
        jax.device_put(part, shard.device)
        for part, shard in zip(parts, array.addressable_shards, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)


def flipped(value):
    """The last bit of a float32 changed."""
    return (value.view(np.uint32) ^ np.uint32(1)).view(np.float32)


def test_one_bit_on_one_device_is_found_and_named(twice):
    replay, first, (state, metrics) = twice
    assert replay.compared(first, (state, metrics)) is None
    for device in (0, 1):  # of an array that all devices hold alike: also the one not looked at
        head = state.params["head"]
        kernel = corrupted(head["kernel"], device, 5, flipped)
        wrong = state._replace(params=state.params | {"head": head | {"kernel": kernel}})
        found = replay.compared(first, (wrong, metrics))
        was = np.asarray(head["kernel"]).flat[5]
        expected = Difference("params/head/kernel", 1, abs(flipped(was) - was))
        assert found.differences == (expected,)
        assert (found.processes, found.hosts, found.of) == ((0,), HOSTS, 1)
        assert expected.name in found.text
        row = json.loads(json.dumps(found.row(), allow_nan=False))
        assert (row["names"], row["values"]) == ([expected.name], [1])


def test_parts_statistics_and_metrics_are_compared_too(twice):
    replay, first, (state, metrics) = twice
    velocity = state.optimizer.momentum
    assert not velocity["head"]["kernel"].is_fully_replicated
    part = corrupted(velocity["head"]["kernel"], 1, 0, lambda x: np.float32(np.nan))
    momentum = velocity | {"head": velocity["head"] | {"kernel": part}}
    leaves, tree = jax.tree.flatten(state.stats)
    stats = jax.tree.unflatten(tree, [corrupted(leaves[0], 0, 0, np.negative), *leaves[1:]])
    wrong = state._replace(optimizer=state.optimizer._replace(momentum=momentum), stats=stats)
    metrics = Metrics(corrupted(metrics.values, 0, 0, lambda x: np.float32(x + 1)))
    found = replay.compared(first, (wrong, metrics))
    names = {difference.name for difference in found.differences}
    assert len(names) == 3
    assert {"optimizer/momentum/head/kernel", "metrics/loss"} <= names
    # What was wrong both times alike is no difference: NaN is compared by its bits.
    assert replay.compared((wrong, metrics), (wrong, metrics)) is None


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_deterministic_runs_give_the_same_bits(tmp_path):
    """In processes of their own that compile for themselves."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    runs = []
    for name in ("a", "b"):
        command = [
            *(sys.executable, "train.py", f"--workdir={tmp_path / name}"),
            *("--config=configs/digits.py", "--config.run.deterministic=True"),
            "--config.run.compile_cache=off",
            *("--config.model.name=resnet10", "--config.model.width=4"),
            *("--config.schedule.length=4 steps", "--config.schedule.warmup=1 steps"),
            "--config.run.log_every=1 steps",
        ]
        pipe = subprocess.PIPE
        runs.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe))
    rows = []
    for name, run in zip(("a", "b"), runs, strict=True):
        errors = run.communicate()[1].decode()
        assert run.returncode == 0, errors[-2000:]
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows.append([json.loads(line) for line in lines])
    timed = {"images_per_s", "input_wait", "seconds"}
    first, second = ([{k: v for k, v in r.items() if k not in timed} for r in run] for run in rows)
    assert len(first) == 4
    assert {"loss", "gradient_norm", "fingerprint"} <= first[0].keys()
    assert "validation/loss" in first[-1]
    assert first == second  # floats are written so that they read back as they were
