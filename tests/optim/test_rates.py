"""What the host gives each step: momentum, its correction, weight decay, the share of SGD."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from largebatch import optim
from largebatch.errors import ConfigError
from tests.optim import plain

RATE = optim.Schedule(
    peak=8.0, start=2.0, warmup=100, decay_end=500, decay="polynomial", power=2.0, end=1.0
)
MADE = optim.RateSchedule(RATE, weight_decay=0.01, momentum=0.9)


def test_momentum_correction_by_hand():
    made = dataclasses.replace(MADE, corrected=True)
    assert made.at(0, None, 1).momentum == 0.9
    assert made.at(50, 0, 2).momentum == pytest.approx(0.9 * 5 / 2, rel=1e-15)
    assert made.at(600, 500, 9).momentum == 0.9
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


def test_decay_that_follows_has_a_rate_of_its_own():
    """Rate times decay is the peak times L times a warm-up from 0 times the rate's decay."""
    made = dataclasses.replace(MADE, follows=True)
    for position in range(0, 700, 25):
        given = made.at(position, None, 1)
        fallen = RATE(position) / 8.0 if position >= 100 else 1.0
        own = min(1.0, position / 100)
        expected = 8.0 * 0.01 * own * fallen
        assert given.learning_rate * given.weight_decay == pytest.approx(expected, rel=1e-14)
    # If the rate begins at 0 too, as published, that is a constant.
    published = dataclasses.replace(made, learning_rate=dataclasses.replace(RATE, start=0.0))
    for position in range(0, 700, 25):
        assert published.at(position, None, 1).weight_decay == pytest.approx(0.01, rel=1e-15)
    flat = dataclasses.replace(RATE, warmup=0, start=0.0)
    assert dataclasses.replace(made, learning_rate=flat).at(0, None, 1).weight_decay == 0.01


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
