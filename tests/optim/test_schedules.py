"""Schedules against numbers from paper, against optax, and at their edges."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax
import pytest

from largebatch.errors import ConfigError
from largebatch.optim import Schedule, peak_rate

POLYNOMIAL = Schedule(
    peak=8.0, start=2.0, warmup=100, decay_end=500, decay="polynomial", power=2.0, end=1.0
)
STEP = Schedule(peak=4.0, warmup=10, decay_end=100, decay="step", steps=(30, 60, 80), factor=0.5)
OTHER = Schedule(peak=8.0, warmup=100, decay_end=500, decay="linear", end=1.0)


@pytest.mark.parametrize(
    ("position", "rate"),
    [
        (0, 2.0),
        (25, 3.5),  # 2 + 6 / 4
        (99, 7.94),  # 2 + 6 · 0.99
        (100, 8.0),
        (200, 1 + 7 * 0.75**2),
        (300, 2.75),  # 1 + 7 / 4
        (499, 1 + 7 / 400**2),
        (500, 1.0),
        (501, 1.0),
        (10**9, 1.0),
    ],
)
def test_polynomial_by_hand(position, rate):
    assert POLYNOMIAL(position) == pytest.approx(rate, rel=1e-15)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        # at 100 (warm-up ends), 200, 300 (the middle), 500, beyond
        ("linear", (8.0, 1 + 7 * 0.75, 4.5, 1.0, 1.0)),
        ("cosine", (8.0, 1 + 7 * (1 + math.sqrt(0.5)) / 2, 4.5, 1.0, 1.0)),  # cos 45° = √½
    ],
)
def test_other_decays_by_hand(decay, rates):
    schedule = dataclasses.replace(OTHER, decay=decay)
    for position, rate in zip((100, 200, 300, 500, 777), rates, strict=True):
        assert schedule(position) == pytest.approx(rate, rel=1e-15)
    assert schedule(0) == 0.0
    assert schedule(50) == 4.0


def test_step_and_constant_by_hand():
    rates = {0: 0, 5: 2, 10: 4, 29: 4, 30: 2, 59: 2, 60: 1, 79: 1, 80: 0.5, 100: 0.5, 999: 0.5}
    assert {position: STEP(position) for position in rates} == rates
    constant = Schedule(peak=4.0, warmup=10, decay_end=100, decay="constant")
    assert [constant(p) for p in (0, 5, 10, 99, 100, 999)] == [0, 2, 4, 4, 4, 4]


@pytest.mark.parametrize("decay", ["polynomial", "linear", "cosine"])
@pytest.mark.parametrize(("start", "peak", "end"), [(0.2, 0.9, 0.3), (1e-3, 13.0, 0.0325)])
def test_ends_are_exact(decay, start, peak, end):
    schedule = Schedule(peak, 7, 23, decay, start=start, end=end)
    assert (schedule(0), schedule(7), schedule(23)) == (start, peak, end)


@pytest.mark.parametrize("decay", ["polynomial", "linear", "cosine", "step", "constant"])
def test_no_warm_up_starts_at_the_peak(decay):
    schedule = Schedule(3.0, 0, 9, decay, steps=(4,) if decay == "step" else ())
    assert schedule(0) == 3.0


def theirs(decay):
    """The decay of optax, from its own step 0."""
    if decay == "cosine":
        return optax.cosine_decay_schedule(8.0, 400, alpha=1 / 8)
    if decay == "linear":
        return optax.linear_schedule(8.0, 1.0, 400)
    return optax.polynomial_schedule(8.0, 1.0, power=2.2, transition_steps=400)


@pytest.mark.parametrize("decay", ["polynomial", "linear", "cosine"])
def test_equals_optax(decay):
    schedule = dataclasses.replace(OTHER, start=0.5, decay=decay, power=2.2)
    positions = range(0, 600, 7)
    with jax.enable_x64(True):
        joined = optax.join_schedules(
            [optax.linear_schedule(0.5, 8.0, 100), theirs(decay)], boundaries=[100]
        )
        wanted = jax.vmap(joined)(jnp.asarray(positions))
    assert wanted.dtype == jnp.float64
    # Near the end optax subtracts from the peak, so its error is relative to that: 1e-14 of 8.
    assert [schedule(p) for p in positions] == pytest.approx(wanted.tolist(), rel=0, abs=1e-13)


def test_step_equals_optax():
    drops = dict.fromkeys(STEP.steps, STEP.factor)
    piecewise = optax.piecewise_constant_schedule(STEP.peak, drops)
    for position in (10, 29, 30, 31, 59, 60, 61, 80, 100):
        assert STEP(position) == float(piecewise(position))


# RECIPES: base 13.0, linear warm-up of 36 epochs of 15 steps, power 2.2 over 780 steps to 0.0025.
FUJITSU = {18: 6.5, 36: 13.0, 50: 6.54, 60: 3.35, 70: 1.29, 80: 0.244, 86: 0.0425, 90: 0.0325}
EPOCH = 15 * 86_016


@pytest.mark.parametrize(("epoch", "rate"), FUJITSU.items())
def test_rates_of_a_published_run(epoch, rate):
    schedule = Schedule(
        peak=13.0,
        warmup=36 * EPOCH,
        decay_end=(540 + 780) * 86_016,
        decay="polynomial",
        power=2.2,
        end=13.0 * 0.0025,
    )
    # The values are published to three digits.
    assert float(f"{schedule(epoch * EPOCH):.3g}") == rate


def test_milestones():
    assert POLYNOMIAL.milestones() == (
        ("start", 0, 2.0),
        ("end of warm-up", 100, 8.0),
        ("middle of decay", 300, 2.75),
        ("end", 500, 1.0),
    )
    assert STEP.milestones() == (
        ("start", 0, 0.0),
        ("end of warm-up", 10, 4.0),
        ("drop 1", 30, 2.0),
        ("drop 2", 60, 1.0),
        ("drop 3", 80, 0.5),
        ("end", 100, 0.5),
    )
    constant = Schedule(peak=3.0, warmup=0, decay_end=9, decay="constant")
    assert constant.milestones() == (("start", 0, 3.0), ("end", 9, 3.0))


@pytest.mark.parametrize(
    ("schedule", "change", "message"),
    [
        (OTHER, {"peak": 0.0}, r"schedule\.peak=0"),
        (OTHER, {"peak": -1.0}, r"schedule\.peak=-1\.0"),
        (OTHER, {"peak": math.inf}, r"schedule\.peak=inf"),
        (OTHER, {"power": math.nan}, r"schedule\.power=nan"),
        (OTHER, {"warmup": -1}, r"schedule\.warmup=-1"),
        (OTHER, {"start": -0.1}, r"schedule\.warmup_start=-0\.1"),
        (OTHER, {"start": 9.0}, r"schedule\.warmup_start=9 .* schedule\.peak=8"),
        (OTHER, {"start": 1.0, "warmup": 0}, r"schedule\.warmup_start=1 has .*warmup=0"),
        (OTHER, {"end": -1.0}, r"schedule\.end=-1\.0 must"),
        (OTHER, {"end": 8.5}, r"schedule\.end=8\.5 .* schedule\.peak=8"),
        (OTHER, {"power": 0.0}, r"schedule\.power=0"),
        (OTHER, {"warmup": 500}, r"warmup=500 .* schedule\.decay_end=500"),
        (OTHER, {"decay_end": 0}, r"schedule\.warmup=100 .*schedule\.decay_end=0"),
        (OTHER, {"decay": "cosin"}, r"schedule\.decay='cosin' .* 'cosine'\?"),
        (OTHER, {"steps": (200,)}, r"schedule\.steps=\(200,\) .* schedule\.decay=linear"),
        (STEP, {"steps": ()}, r"schedule\.steps=\(\) .* schedule\.decay=step"),
        (STEP, {"steps": (60, 30)}, r"schedule\.steps=\(60, 30\)"),
        (STEP, {"steps": (30, 30)}, r"schedule\.steps=\(30, 30\)"),
        (STEP, {"steps": (10, 30)}, r"10 .* schedule\.warmup=10"),
        (STEP, {"steps": (30, 100)}, r"100 .* schedule\.decay_end=100"),
        (STEP, {"factor": 0.0}, r"schedule\.factor=0 .* 0 .* 1"),
        (STEP, {"factor": 1.0}, r"schedule\.factor=1 .* 0 .* 1"),
        (STEP, {"end": 0.1}, r"schedule\.end=0\.1 .* schedule\.decay=step"),
    ],
)
def test_impossible_schedules(schedule, change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(schedule, **change)


def test_constant_has_no_floor():
    with pytest.raises(ConfigError, match=r"schedule\.end=0\.1 .*schedule\.decay=constant"):
        Schedule(peak=1.0, warmup=0, decay_end=9, decay="constant", end=0.1)


def test_peak_rate():
    shared = {"batch": 81_920, "scaling": "linear"}  # 320 × 256
    assert peak_rate(peak=13.0, per_256=0.0, **shared) == 13.0
    assert peak_rate(peak=0.0, per_256=0.1, **shared) == 32.0
    square = {"batch": 16_384, "scaling": "sqrt"}  # 64 × 256
    assert peak_rate(peak=0.0, per_256=0.5, **square) == 4.0
    assert peak_rate(peak=13.0, per_256=0.0, **square) == 13.0


@pytest.mark.parametrize(
    ("peak", "per_256", "message"),
    [
        (0.0, 0.0, r"schedule\.peak=0 and schedule\.per_256=0: .* 0"),
        (13.0, 0.1, r"schedule\.peak=13 and schedule\.per_256=0\.1"),
        (-1.0, 0.0, r"schedule\.peak=-1 .* 0"),
        (0.0, -0.1, r"schedule\.per_256=-0\.1 .* 0"),
    ],
)
def test_peak_rate_needs_exactly_one(peak, per_256, message):
    with pytest.raises(ConfigError, match=message):
        peak_rate(peak=peak, per_256=per_256, batch=256, scaling="linear")
