import json

import jax
import numpy as np
import pytest

from largebatch.parallel import from_local
from largebatch.training.programs import Programs
from largebatch.training.stragglers import (
    Host,
    HostTimes,
    Report,
    Suspicion,
    probe,
    seconds,
)
from tests.training import worlds


def report(compute, wait=None):
    rows = zip(compute, wait or [0.004] * len(compute), strict=True)
    hosts = tuple(Host(i, f"node{14 + i}", 0.2, w, c) for i, (c, w) in enumerate(rows))
    return Report(hosts, slow_factor=1.2)


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
    assert (made.slowest.process, made.cause, made.exceeds) == (slowest, cause, slow)
    assert made.factor == pytest.approx(factor)
    assert f"process {slowest} (node{14 + slowest})" in made.text


def test_a_row_holds_a_value_for_each_process():
    row = json.loads(json.dumps(report([0.129, 0.182]).row(), allow_nan=False))
    assert row["host"] == ["node14", "node15"]
    assert row["compute_s"] == [0.129, 0.182]
    assert row["wait_s"] == [0.004, 0.004]
    assert row["step_s"] == [0.2, 0.2]
    assert row["barrier_s"] == pytest.approx([0.133, 0.186])
    assert row["median_s"] == pytest.approx(0.133)
    assert (row["slowest"], row["cause"]) == (1, "compute")


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
    suspicion = Suspicion()
    assert [suspicion.confirms(report(each)) for each in comparisons] == confirmed


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_noise_confirms_a_straggler_no_more_often_than_stated(processes):
    """Of equal hosts: a tenth of noise makes one of them slow in a share q of the comparisons."""
    draw, suspicion, count = np.random.default_rng(0), Suspicion(), 20_000
    reports = [report(draw.lognormal(-2, 0.1, processes), [0.0] * processes) for _ in range(count)]
    exceeded = sum(each.exceeds for each in reports) / count
    found = sum(suspicion.confirms(each) for each in reports) / count
    assert exceeded > 0.1
    assert found < 1.3 * exceeded**3 / processes**2


def test_times_are_means_over_what_was_measured():
    assert HostTimes().means == (0, 0, 0)
    times = HostTimes(steps=2, step_s=2.0, wait_s=0.4)
    times.add_compute(0.5)  # a probe: once in the interval
    assert times.means == pytest.approx((1.0, 0.2, 0.5))


def test_the_probe_computes_a_microbatch_and_crosses_no_network():
    made = worlds.steps(
        worlds.config(model=worlds.RESNET, batch={"workers": 4}, norm={"span": 2}), 2, 1, "float32"
    )
    assert made.plan.members == 2  # BatchNorm of a step does cross it
    programs = Programs(made)
    arguments = (programs.state.params, programs.state.stats, *programs._images)
    lowered = probe(made).lower(*arguments)
    text = lowered.as_text()
    assert "all_reduce" not in text
    assert "all_gather" not in text
    accumulate = made.accumulate.lower(*arguments[:2], programs._carry, *arguments[2:])
    assert "all_reduce" in accumulate.as_text()

    options = {"xla_backend_optimization_level": 0}
    compiled = lowered.compile(compiler_options=options)
    flops = [
        program.cost_analysis()["flops"]
        for program in (compiled, accumulate.compile(compiler_options=options))
    ]
    # Backward is two thirds of it; what differs are sums over statistics and gradients.
    assert flops[0] == pytest.approx(flops[1], rel=0.03)

    images, labels = (
        from_local(made.mesh, a) for a in worlds.batch(0, made.plan.microbatch_samples)
    )
    draw = np.random.default_rng(0)
    params, stats = (
        jax.tree.map(lambda x: draw.uniform(0.5, 1, x.shape).astype(x.dtype), tree)
        for tree in arguments[:2]
    )
    found = compiled(params, stats, images, labels)
    assert np.isfinite(found).all()
    assert len(set(found.tolist())) == 2  # each device's images give gradients of their own
    assert seconds(compiled, params, stats, images, labels) > 0
