"""LARS on vectors of two elements, every number checked on paper.

Throughout ‖(3, 4)‖ = 5, ‖(6, 8)‖ = ‖(−8, 6)‖ = 10 and e = 0.02. The float64 results may differ
from the decimals written here by rounding: 1e-14.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import optim
from tests.optim import plain


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def take(gradients, rates, flavour="mlperf", w=(3, 4), weight_decay=0.0, **options):
    """Weights after each step, and the state."""
    rule = optim.lars(flavour=flavour, **{"trust_coefficient": 0.02, **options})
    grads = [{"w": np.array(g, np.float64)} for g in gradients]
    given = {"momentum": 0.5, "weight_decay": weight_decay}
    history, state = plain.run(rule, {"w": np.array(w, np.float64)}, grads, rates, **given)
    return [after["w"] for after in history], state


def assert_equal(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)


def ratio(state):
    return float(state.report.trust_ratio[0])


@pytest.mark.parametrize("flavour", ["mlperf", "optax"])
def test_without_decay(flavour):
    # trust = 0.02 · 5 / 10 = 0.01; v = 10 · 0.01 · (6, 8) = (0.6, 0.8)
    (w,), state = take([(6, 8)], [10], flavour)
    assert_equal(w, (2.4, 3.2))
    assert_equal(state.momentum["w"], (0.6, 0.8))
    assert_equal(ratio(state), 0.01)
    assert_equal(state.report.weight_norm[0], 5)
    assert_equal(state.report.gradient_norm[0], 10)


def test_decay_in_mlperf():
    # g ⟂ w, wd = 2: denominator 10 + 2 · 5 = 20; trust = 0.02 · 5 / 20 = 0.005
    # u = (−8, 6) + 2 · (3, 4) = (−2, 14); v = 2 · 0.005 · u = (−0.02, 0.14)
    (w,), state = take([(-8, 6)], [2], weight_decay=2)
    assert_equal(w, (3.02, 3.86))
    assert_equal(ratio(state), 0.005)
    assert_equal(state.report.gradient_norm[0], 10)  # without decay


def test_decay_in_optax():
    # The same, but the denominator is ‖(−2, 14)‖ = √200 = 20 / √2: everything is √2 times as large.
    (w,), state = take([(-8, 6)], [2], "optax", weight_decay=2)
    assert_equal(w, (3 + 0.02 * 2**0.5, 4 - 0.14 * 2**0.5))
    assert_equal(ratio(state), 0.005 * 2**0.5)
    assert_equal(state.report.gradient_norm[0], 10)


@pytest.mark.parametrize("flavour", ["mlperf", "optax"])
def test_flavours_agree_where_gradient_and_weight_are_parallel(flavour):
    # u = (6, 8) + 2 · (3, 4) = (12, 16), of norm 20 = 10 + 2 · 5; v = 2 · 0.005 · u
    (w,), _ = take([(6, 8)], [2], flavour, weight_decay=2)
    assert_equal(w, (2.88, 3.84))


def test_epsilon():
    # trust = 0.02 · 5 / (20 + 5) = 0.004; v = 2 · 0.004 · (−2, 14) = (−0.016, 0.112)
    (w,), state = take([(-8, 6)], [2], weight_decay=2, epsilon=5)
    assert_equal(w, (3.016, 3.888))
    assert_equal(ratio(state), 0.004)


@pytest.mark.parametrize("flavour", ["mlperf", "optax"])
def test_zero_gamma_takes_a_raw_step(flavour):
    # ‖w‖ = 0: trust 1; u = g; v = 0.1 · (3, 4)
    (w,), state = take([(3, 4)], [0.1], flavour, w=(0, 0), weight_decay=2, epsilon=5)
    assert_equal(w, (-0.3, -0.4))
    assert ratio(state) == 1


def test_zero_gradient_in_mlperf():
    # ‖g‖ = 0: trust 1; u = 0.1 · (3, 4); v = 0.5 · (0.3, 0.4)
    (w,), state = take([(0, 0)], [0.5], weight_decay=0.1)
    assert_equal(w, (2.85, 3.8))
    assert ratio(state) == 1


def test_zero_gradient_in_optax():
    # The norm that counts is ‖g + wd·w‖ = ‖(0.3, 0.4)‖ = 0.5: trust = 0.02 · 5 / 0.5 = 0.2
    # v = 0.5 · 0.2 · (0.3, 0.4) = (0.03, 0.04)
    (w,), state = take([(0, 0)], [0.5], "optax", weight_decay=0.1)
    assert_equal(w, (2.97, 3.96))
    assert_equal(ratio(state), 0.2)


@pytest.mark.parametrize("flavour", ["mlperf", "optax"])
@pytest.mark.parametrize("before", [(3, 4), (0, 0)])
def test_nothing_moves_without_gradient_and_decay(before, flavour):
    with jax.debug_nans(True):  # stops at 0 / 0, even where it is not used
        (w,), state = take([(0, 0)], [0.5], flavour, w=before)
    assert_equal(w, before)
    assert ratio(state) == 1


def test_trust_masked_decay_remains():
    # u = (−2, 14) as above; v = 0.1 · u
    (w,), state = take([(-8, 6)], [0.1], weight_decay=2, trust_mask={"w": False})
    assert_equal(w, (3.2, 2.6))
    assert ratio(state) == 1


def test_decay_masked_trust_remains_and_its_denominator_has_no_decay():
    # trust = 0.02 · 5 / 10 = 0.01; v = 10 · 0.01 · (−8, 6) = (−0.8, 0.6)
    for flavour in ("mlperf", "optax"):
        (w,), _ = take([(-8, 6)], [10], flavour, weight_decay=2, decay_mask={"w": False})
        assert_equal(w, (3.8, 3.4))


def test_both_masked():
    # v = 0.1 · (−8, 6)
    masks = {"trust_mask": {"w": False}, "decay_mask": {"w": False}}
    (w,), _ = take([(-8, 6)], [0.1], weight_decay=2, **masks)
    assert_equal(w, (3.8, 3.4))


def test_momentum_holds_the_learning_rate_of_its_step():
    # Step 1: v = 10 · 0.01 · (6, 8) = (0.6, 0.8); w = (2.4, 3.2), ‖w‖ = 4.
    # Step 2: g = (0, 8), trust = 0.02 · 4 / 8 = 0.01, rate 5: x = (0, 0.4);
    #         v = 0.5 · (0.6, 0.8) + x = (0.3, 0.8); w = (2.1, 2.4).
    # With the rate outside, step 2 would be 5 · (0.5 · (0.06, 0.08) + (0, 0.08)): w = (2.25, 2.6).
    (first, second), state = take([(6, 8), (0, 8)], [10, 5])
    assert_equal(first, (2.4, 3.2))
    assert_equal(second, (2.1, 2.4))
    assert_equal(state.momentum["w"], (0.3, 0.8))


def test_nesterov():
    # Step 1: x = v = (0.6, 0.8); w − (x + 0.5 v) = (3, 4) − (0.9, 1.2) = (2.1, 2.8), ‖w‖ = 3.5.
    # Step 2: g = (0, 7), trust = 0.02 · 3.5 / 7 = 0.01, rate 5: x = (0, 0.35);
    #         v = 0.5 · (0.6, 0.8) + x = (0.3, 0.75); x + 0.5 v = (0.15, 0.725).
    (first, second), state = take([(6, 8), (0, 7)], [10, 5], nesterov=True)
    assert_equal(first, (2.1, 2.8))
    assert_equal(second, (1.95, 2.075))
    assert_equal(state.momentum["w"], (0.3, 0.75))


def test_a_learning_rate_of_zero_keeps_coasting():
    # v = 0.5 · (0.6, 0.8): the velocity decays but the weight moves on with it.
    (_, second), _ = take([(6, 8), (5, 5)], [10, 0])
    assert_equal(second, (2.4 - 0.3, 3.2 - 0.4))


def test_report_before_the_first_update():
    report = optim.lars(flavour="mlperf").init({"w": jnp.ones(2)}).report
    assert [x.tolist() for x in report] == [[1.0], [0.0], [0.0]]
