"""A step computed twice, and the times of hosts."""

import json

import jax
import numpy as np
import pytest

from largebatch.training.checks import (
    HostTimes,
    compared,
    corruption_line,
    differences,
    straggler_line,
)
from largebatch.training.stage import Stage
from largebatch.training.state import Metrics
from largebatch.training.timing import Clock
from tests.training import worlds

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
    stage = Stage(steps)
    assert stage.plan.microbatches == 2
    state = stage.steps.init(np.int32(0))
    kept, batch = stage.steps.copy(state), worlds.batch(0, stage.steps.plan.samples_per_step)
    first = worlds.run_step(stage, state, *batch, rate=1.0)
    assert state.params["head"]["bias"].is_deleted()  # the step took it, and left the copy
    return stage, first, worlds.run_step(stage, kept, *batch, rate=1.0)


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
    stage, first, (state, metrics) = twice
    assert differences(stage, first, (state, metrics), HOSTS) is None
    for device in (0, 1):  # of an array that all devices hold alike: also the one not looked at
        head = state.params["head"]
        kernel = corrupted(head["kernel"], device, 5, flipped)
        wrong = state._replace(params=state.params | {"head": head | {"kernel": kernel}})
        found = differences(stage, first, (wrong, metrics), HOSTS)
        was = np.asarray(head["kernel"]).flat[5]
        row = json.loads(json.dumps(found, allow_nan=False))
        assert (row["processes"], row["hosts"]) == ([0], list(HOSTS))
        assert (row["names"], row["values"]) == (["params/head/kernel"], [1])
        assert row["largest"] == [abs(flipped(was) - was)]
        assert "params/head/kernel" in corruption_line(found, 1, may_be_harmless=False)


def test_parts_statistics_and_metrics_are_compared_too(twice):
    stage, first, (state, metrics) = twice
    velocity = state.optimizer.momentum
    assert not velocity["head"]["kernel"].is_fully_replicated
    part = corrupted(velocity["head"]["kernel"], 1, 0, lambda x: np.float32(np.nan))
    momentum = velocity | {"head": velocity["head"] | {"kernel": part}}
    leaves, tree = jax.tree.flatten(state.stats)
    stats = jax.tree.unflatten(tree, [corrupted(leaves[0], 0, 0, np.negative), *leaves[1:]])
    wrong = state._replace(optimizer=state.optimizer._replace(momentum=momentum), stats=stats)
    metrics = Metrics(corrupted(metrics.values, 0, 0, lambda x: np.float32(x + 1)))
    found = differences(stage, first, (wrong, metrics), HOSTS)
    assert len(found["names"]) == 3
    assert {"optimizer/momentum/head/kernel", "metrics/loss"} <= set(found["names"])
    # What was wrong both times alike is no difference: NaN is compared by its bits.
    assert differences(stage, (wrong, metrics), (wrong, metrics), HOSTS) is None


def report(compute, wait=None):
    rows = zip(compute, wait or [0.004] * len(compute), strict=True)
    names = [f"node{14 + i}" for i in range(len(compute))]
    return compared(np.array([(0.2, w, c) for c, w in rows]), names)


@pytest.mark.parametrize(
    ("compute", "wait", "slowest", "factor", "cause", "slow"),
    [
        # The factor is of the lower of the middle two.
        ([0.129, 0.128, 0.130, 0.182], None, 3, 0.186 / 0.133, "compute", True),
        ([0.129, 0.131, 0.128], [0.090, 0.003, 0.004], 0, 0.219 / 0.134, "input", True),
        ([0.100, 0.104, 0.101], None, 1, 0.108 / 0.105, "compute", False),
        # Of two, one at half speed is twice as slow, not a third slower than their mean.
        ([0.1, 0.2], [0.0, 0.0], 1, 2.0, "compute", True),
    ],
)
def test_the_slowest_host_is_found(compute, wait, slowest, factor, cause, slow):
    made = report(compute, wait)
    assert (made["slowest"], made["cause"], made["factor"] >= 1.2) == (slowest, cause, slow)
    assert made["factor"] == pytest.approx(factor)
    assert f"process {slowest} (node{14 + slowest})" in straggler_line(made)


SLOW_0, SLOW_1, EQUAL = [0.2, 0.1, 0.1], [0.1, 0.2, 0.1], [0.1, 0.1, 0.11]


@pytest.mark.parametrize(
    ("comparisons", "confirmed"),
    [
        ([SLOW_1] * 5, [False, False, True, True, True]),
        ([SLOW_1, SLOW_0] * 3, [False] * 6),
        ([SLOW_1, SLOW_1, EQUAL, SLOW_1, SLOW_1, SLOW_1], [False] * 5 + [True]),
        ([SLOW_0, SLOW_1, SLOW_1, SLOW_1], [False, False, False, True]),
    ],
)
def test_a_straggler_is_slow_in_consecutive_comparisons(comparisons, confirmed):
    times = HostTimes(Clock(), 0)
    assert [confirms(times, report(each)) for each in comparisons] == confirmed


def confirms(times, row):
    return times.confirms(row["slowest"], row["factor"] >= 1.2)


@pytest.mark.parametrize("processes", [2, 4])
def test_noise_confirms_a_straggler_no_more_often_than_stated(processes):
    """Of equal hosts: a tenth of noise makes one of them slow in a share q of the comparisons."""
    draw, times, count = np.random.default_rng(0), HostTimes(Clock(), 0), 20_000
    reports = [report(draw.lognormal(-2, 0.1, processes), [0.0] * processes) for _ in range(count)]
    exceeded = sum(each["factor"] >= 1.2 for each in reports) / count
    found = sum(confirms(times, each) for each in reports) / count
    assert exceeded > 0.1
    assert found < 1.3 * exceeded**3 / processes**2


def test_times_are_means_since_the_last_comparison():
    clock = Clock(train_s=10.0, wait_s=1.0)
    times = HostTimes(clock, 7)
    for _ in range(2):
        clock.train_s, clock.wait_s = clock.train_s + 2.0, clock.wait_s + 0.4
        times.note(0.5)
        step = 9 if clock.train_s == 12.0 else 11
        row = times.compare(step)
        assert (*row["step_s"], *row["wait_s"], *row["compute_s"]) == pytest.approx((1, 0.2, 0.5))
        assert (row["factor"], row["slow"]) == (1.0, False)


def test_the_probe_computes_a_microbatch_and_crosses_no_network():
    made = worlds.steps(
        worlds.config(model=worlds.RESNET, batch={"workers": 4}, norm={"span": 2}), 2, 1, "float32"
    )
    assert made.plan.members == 2  # BatchNorm of a step does cross it
    stage = Stage(made)
    arguments = (stage.state.params, stage.state.stats, *stage.images)
    text = made.probe.lower(*arguments).as_text()
    assert "convolution" in text
    assert "all_reduce" not in text
    assert "all_gather" not in text
    accumulate = made.accumulate.lower(*arguments[:2], stage.carry, *arguments[2:])
    assert "all_reduce" in accumulate.as_text()
