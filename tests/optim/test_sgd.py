"""SGD against optax; the transition from RMSprop against the formulas of Akiba et al. 2017."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from tests.optim import plain

RATES = (0.1, 0.5, 1.0, 0.4, 0.2, 0.05)
BLEND_RATES = (0.4, 0.8, 0.2, 0.1)
SHARES = (0.1, 0.5, 0.9, 1.0)
OPTIONS = {"momentum": 0.9, "weight_decay": 0.05}


def problem(dtype):
    rng = np.random.default_rng(6)
    return plain.random_tree(rng, dtype), [plain.random_tree(rng, dtype, 0.1) for _ in RATES]


@pytest.mark.parametrize(
    ("mask", "nesterov", "dtype", "tolerance"),
    [(True, False, np.float32, 1e-6), (plain.only("kernel"), True, np.float64, 1e-14)],
)
def test_equals_optax(mask, nesterov, dtype, tolerance):
    """The learning rate is outside of the velocity, as optax has it."""
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        rule = optim.sgd(nesterov=nesterov, decay_mask=mask)
        history, _ = plain.run(rule, params, grads, RATES, **OPTIONS)
        table = jnp.asarray(RATES, dtype)
        theirs = optax.chain(
            optax.add_decayed_weights(OPTIONS["weight_decay"], mask),
            optax.sgd(lambda count: table[count], OPTIONS["momentum"], nesterov=nesterov),
        )
        for ours, expected in zip(history, plain.run_optax(theirs, params, grads), strict=True):
            plain.assert_close(ours, expected, tolerance)


def test_bfloat16_velocities_are_summed_in_float32():
    # v = 0.9 · 1.0078125 − 0.90625 = 0.00078125; rounded to bfloat16 before the sum, 0.9 v would be
    # 0.90625 and v 0. Tolerance: 8 bits.
    grads = [{"w": jnp.full(1, g, jnp.bfloat16)} for g in (1.0078125, -0.90625)]
    _, state = plain.run(optim.sgd(), {"w": jnp.ones(1, jnp.bfloat16)}, grads, (1, 1))
    assert float(state.momentum["w"][0]) == pytest.approx(0.00078125, rel=2**-8)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def blend_problem():
    draw = np.random.default_rng(12)
    return plain.random_tree(draw), [plain.random_tree(draw, deviation=0.1) for _ in BLEND_RATES]


def given(**changes):
    rates = zip(BLEND_RATES, SHARES, strict=True)
    return [optim.Rates(n, 0.05, 0.9, **{"sgd_share": a, **changes}) for n, a in rates]


@pytest.mark.usefixtures("float64")
def test_equals_the_published_formulas():
    params, grads = blend_problem()
    mask = plain.only("kernel")
    rule = optim.rmsprop_sgd(second_momentum=0.97, rmsprop_rate=2e-3, epsilon=1e-4, decay_mask=mask)
    history, state = plain.run(rule, params, grads, given())
    for module, of in params.items():
        for name, start in of.items():
            # Δ and m of the paper; θ grows by η·Δ.
            theta, delta, m = start.copy(), 0.0, 0.0
            for i, (eta, a_sgd) in enumerate(zip(BLEND_RATES, SHARES, strict=True)):
                g = grads[i][module][name] + (0.05 * theta if name == "kernel" else 0)
                m = 0.97 * m + 0.03 * g**2
                a_rms = (1 - a_sgd) * 2e-3 / eta
                delta = 0.9 * delta - (a_sgd + a_rms / (np.sqrt(m) + 1e-4)) * g
                theta = theta + eta * delta
                # Four steps of some twenty operations, on weights of about 1.
                np.testing.assert_allclose(history[i][module][name], theta, rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(state.momentum[module][name], -delta, rtol=1e-12)
            np.testing.assert_allclose(state.second_moment[module][name], m, rtol=1e-13)
    assert state.report.trust_ratio.tolist() == [1.0] * 5


@pytest.mark.usefixtures("float64")
def test_a_share_of_1_is_sgd():
    params, grads = blend_problem()
    (blend, _), (sgd, _) = (
        plain.run(rule(nesterov=True), params, grads, given(sgd_share=1.0))
        for rule in (optim.rmsprop_sgd, optim.sgd)
    )
    for one, other in zip(blend, sgd, strict=True):
        plain.assert_close(one, other, 1e-15)


@pytest.mark.usefixtures("float64")
def test_a_share_of_0_is_rmsprop_at_its_own_rate():
    """g / √s of a constant gradient is 1 / √(1 − b) at first, whatever the learning rate of SGD."""
    rule = optim.rmsprop_sgd(second_momentum=0.96, rmsprop_rate=0.01, epsilon=0.0)
    rates = [optim.Rates(10.0, momentum=0.0, sgd_share=0.0)]
    (after,), _ = plain.run(rule, {"w": np.zeros(3)}, [{"w": np.full(3, 7.0)}], rates)
    np.testing.assert_allclose(after["w"], -0.01 / 0.2, rtol=1e-13)


@pytest.mark.usefixtures("float64")
def test_a_learning_rate_of_0_moves_nothing():
    with jax.debug_nans(True):
        rates = [optim.Rates(0.0, sgd_share=0.3)]
        params = {"w": np.ones(2)}
        (after,), state = plain.run(optim.rmsprop_sgd(), params, [params], rates)
    np.testing.assert_array_equal(after["w"], 1.0)
    np.testing.assert_allclose(state.momentum["w"], 0.3)


def test_a_chain_of_optax_passes_the_rates():
    """Without weight decay, SGD is linear in the gradients."""
    params, grads = problem(np.float32)
    chained = optax.chain(optax.scale(0.5), optim.sgd(), optax.scale(2.0))
    found, _ = plain.run(chained, params, grads, RATES)
    expected, _ = plain.run(optim.sgd(), params, grads, RATES)
    plain.assert_close(found[-1], expected[-1], 1e-6)
