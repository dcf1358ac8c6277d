"""Schedules against published values, against optax, and which of them are refused; what the host
gives each step: momentum, its correction, weight decay, the share of SGD."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.errors import ConfigError
from largebatch.optim import Schedule, peak_rate
from tests.optim import plain

BASE = {"peak": 8.0, "warmup": 100, "decay_end": 500}
LINEAR = Schedule(**BASE, decay="linear", end=1.0)
POLYNOMIAL = Schedule(**BASE, decay="polynomial", power=2.0, start=2.0, end=1.0)
DROPS = ((30, 0.5), (60, 0.25), (80, 0.125))
STEP = Schedule(peak=4.0, warmup=10, decay_end=100, decay="pieces", points=DROPS)
PIECES = Schedule(**BASE, decay="pieces", points=((200, 0.5), (300, 0.25)))
LINES = Schedule(**BASE, decay="lines", points=((200, 0.5), (400, 0.4), (500, 0.0)))
ROUNDING = 1e-15
RATE = optim.Schedule(
    peak=8.0, start=2.0, warmup=100, decay_end=500, decay="polynomial", power=2.0, end=1.0
)
MADE = optim.RateSchedule(RATE, weight_decay=0.01, momentum=0.9)


def theirs(decay):
    """The decay of optax, from its own step 0."""
    if decay == "cosine":
        return optax.cosine_decay_schedule(8.0, 400, alpha=1 / 8)
    if decay == "linear":
        return optax.linear_schedule(8.0, 1.0, 400)
    return optax.polynomial_schedule(8.0, 1.0, power=2.2, transition_steps=400)


@pytest.mark.parametrize("decay", ["polynomial", "linear", "cosine"])
def test_equals_optax(decay):
    schedule = dataclasses.replace(LINEAR, start=0.5, decay=decay, power=2.2)
    positions = range(0, 600, 7)
    with jax.enable_x64(True):
        joined = optax.join_schedules(
            [optax.linear_schedule(0.5, 8.0, 100), theirs(decay)], boundaries=[100]
        )
        wanted = jax.vmap(joined)(jnp.asarray(positions))
    # Near the end optax subtracts from the peak, so its error is relative to that: 1e-14 of 8.
    assert [schedule(p) for p in positions] == pytest.approx(wanted.tolist(), rel=0, abs=1e-13)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (POLYNOMIAL, {0: 2.0, 25: 3.5, 99: 7.94, 100: 8.0, 300: 2.75, 500: 1.0, 10**9: 1.0}),
        (
            STEP,
            {0: 0, 5: 2, 10: 4, 29: 4, 30: 2, 59: 2, 60: 1, 79: 1, 80: 0.5, 100: 0.5, 999: 0.5},
        ),
        (
            Schedule(peak=4.0, warmup=10, decay_end=100, decay="constant"),
            {0: 0, 5: 2, 10: 4, 99: 4, 999: 4},
        ),
        # 8 · (¼)² and 8 · (½)²
        (
            Schedule(**BASE, decay="polynomial", warmup_shape="quadratic"),
            {0: 0.0, 25: 0.5, 50: 2.0, 100: 8.0},
        ),
        (
            Schedule(2.0, 0, 10, "lines", points=((0, 0.25), (4, 1.0), (10, 0.5))),
            {0: 0.5, 2: 1.25, 4: 2.0, 7: 1.5, 10: 1.0, 11: 1.0},
        ),
    ],
)
def test_by_hand(schedule, expected):
    assert {p: schedule(p) for p in expected} == pytest.approx(expected, rel=ROUNDING)


def test_milestones_have_the_rates_of_their_places():
    for schedule, places in ((POLYNOMIAL, [0, 100, 300, 500]), (LINES, [0, 100, 200, 400, 500])):
        found = schedule.milestones()
        assert [(place, rate) for _, place, rate in found] == [(p, schedule(p)) for p in places]


def test_siat_cosine_warm_up():
    """SIAT's submission to MLPerf v0.7: from 0.8 to 25, 7.6 of 24 epochs, then a cosine to 0."""
    schedule = Schedule(25.0, 760, 2400, "cosine", start=0.8, warmup_shape="cosine")
    for i in (0, 1, 380, 759):
        angle = math.pi + math.pi * i / 760
        assert schedule(i) == pytest.approx(0.8 + 24.2 * 0.5 * (1 + math.cos(angle)), rel=1e-13)
    for i in (760, 1580, 2399):
        angle = math.pi * (i - 760) / 1640
        assert schedule(i) == pytest.approx(25 * 0.5 * (1 + math.cos(angle)), rel=1e-12)
    assert schedule(2400) == 0


@pytest.mark.parametrize(
    ("schedule", "change", "option"),
    [
        (LINEAR, {"peak": 0.0}, "peak"),
        (LINEAR, {"start": 9.0}, "warmup_start"),
        (LINEAR, {"start": 1.0, "warmup": 0}, "warmup_start"),
        (LINEAR, {"warmup": 500}, "decay_end"),
        (LINEAR, {"decay": "cosin"}, "decay"),
        (LINEAR, {"points": ((200, 0.5),)}, "decay=linear"),
        (STEP, {"end": 0.1}, "end"),
        (LINES, {"points": ((300, 0.5), (200, 0.1))}, "points"),
        (PIECES, {"points": ((99, 0.5),)}, "points"),
        (PIECES, {"points": ((200, 1.5),)}, "points"),
    ],
)
def test_impossible_schedules(schedule, change, option):
    with pytest.raises(ConfigError, match=rf"schedule\.{option}"):
        dataclasses.replace(schedule, **change)


def test_peak_rate():
    shared = {"batch": 81_920}  # 320 × 256
    assert peak_rate(peak=13.0, per_256=0.0, **shared) == 13.0
    assert peak_rate(peak=0.0, per_256=0.1, **shared) == 32.0
    for peak, per_256 in ((0.0, 0.0), (13.0, 0.1), (-1.0, 0.0), (0.0, -0.1)):
        with pytest.raises(ConfigError, match=r"schedule\.(peak|per_256)"):
            peak_rate(peak=peak, per_256=per_256, **shared)


def test_momentum_correction_by_hand():
    made = dataclasses.replace(MADE, corrected=True)
    found = made.at(50, 0, 2, scale=3.0, scale_before=2.0)
    assert found.momentum == pytest.approx(0.9 * 15 / 4, rel=1e-15)
    # After a rate of 0 there is nothing to take the velocity from.
    at_zero = dataclasses.replace(made, learning_rate=dataclasses.replace(RATE, start=0.0))
    assert at_zero.at(50, 0, 2).momentum == 0.9


def test_corrected_momentum_makes_rates_inside_those_outside():
    """Goyal et al. 2017, section 3: the two forms of SGD are then the same."""
    positions = range(0, 600, 60)
    with jax.enable_x64(True):
        draw = np.random.default_rng(4)
        params = plain.random_tree(draw)
        grads = [plain.random_tree(draw) for _ in positions]
        ends = []
        for inside in (True, False):
            made = dataclasses.replace(MADE, corrected=inside)
            before = [None, *positions]
            given = [made.at(p, b, 1) for p, b in zip(positions, before, strict=False)]
            history, _ = plain.run(
                optim.sgd(rate="inside" if inside else "outside"), params, grads, given
            )
            ends.append(history[-1])
    # Ten steps of a handful of operations, and a ratio of rates in each.
    plain.assert_close(*ends, 1e-13)


def test_momentum_falls_to_the_peak_and_comes_back():
    made = dataclasses.replace(MADE, momentum=0.98, momentum_at_peak=0.90)
    found = {p: made.at(p, None, 1).momentum for p in (0, 50, 100, 300, 500, 900)}
    # Half way up and down: 0.94; at 300 a quarter of the decay is left: 0.98 − 0.08 / 4.
    expected = {0: 0.98, 50: 0.94, 100: 0.90, 300: 0.96, 500: 0.98, 900: 0.98}
    assert found == pytest.approx(expected, rel=1e-15)


def test_share_of_sgd_in_a_blend():
    """Akiba et al. 2017 with centre 10 and period 5, here in epochs of 1,000 samples."""
    blend = optim.Blend(centre=10_000, period=5_000)
    assert blend(0) == pytest.approx(0.5 * math.exp(-4), rel=1e-15)
    assert blend(5_000) == pytest.approx(0.5 * math.exp(-2), rel=1e-15)
    assert (blend(10_000), blend(11_250), blend(12_500), blend(90_000)) == (0.5, 0.75, 1.0, 1.0)
    # Value and slope go through the centre smoothly: 1 / period on both sides.
    rise = [blend(10_000 + i + 1) - blend(10_000 + i) for i in (-2, -1, 0, 1)]
    assert rise == pytest.approx([1 / 5_000] * 4, rel=1e-3)
    shares = [blend(p) for p in range(0, 20_000, 100)]
    assert shares == sorted(shares)
    assert dataclasses.replace(MADE, blend=blend).at(11_250, None, 1).sgd_share == 0.75
    with pytest.raises(ConfigError, match="period"):
        optim.Blend(centre=10, period=0)
