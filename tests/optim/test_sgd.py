"""SGD against NumPy, against optax, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from tests.optim import plain

RATES = (0.1, 0.5, 1.0, 0.4, 0.2, 0.05)
OPTIONS = {"momentum": 0.9, "weight_decay": 0.05}


def problem(dtype):
    rng = np.random.default_rng(6)
    return plain.random_tree(rng, dtype), [plain.random_tree(rng, dtype, 0.1) for _ in RATES]


@pytest.mark.parametrize(
    ("masks", "nesterov", "dtype", "tolerance"),
    [
        ({}, False, np.float32, 1e-6),
        ({"decay_mask": plain.only("kernel")}, True, np.float64, 1e-14),
    ],
)
def test_equals_the_plain_loop(masks, nesterov, dtype, tolerance):
    options = {**masks, "nesterov": nesterov}
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        history, _ = plain.run(optim.sgd(**options), params, grads, RATES, **OPTIONS)
    wanted = plain.loop("sgd", params, grads, RATES, **options, **OPTIONS)
    for ours, theirs in zip(history, wanted, strict=True):
        plain.assert_close(ours, theirs, tolerance)


@pytest.mark.parametrize(
    ("nesterov", "dtype", "tolerance"), [(False, np.float64, 1e-14), (True, np.float32, 1e-6)]
)
def test_equals_optax_sgd_at_a_constant_rate(nesterov, dtype, tolerance):
    mask = plain.only("kernel")
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        rule = optim.sgd(nesterov=nesterov, decay_mask=mask)
        history, _ = plain.run(rule, params, grads, [0.3] * len(grads), **OPTIONS)
        theirs = optax.chain(
            optax.add_decayed_weights(OPTIONS["weight_decay"], mask),
            optax.sgd(0.3, OPTIONS["momentum"], nesterov=nesterov),
        )
        params, state = plain.device(params), theirs.init(plain.device(params))
        for g, ours in zip(grads, history, strict=True):
            updates, state = theirs.update(plain.device(g), state, params)
            params = optax.apply_updates(params, updates)
            plain.assert_close(ours, params, tolerance)


def test_by_hand():
    # m = 0.5, wd = 0.1. Step 1: u = (1, 2) + 0.1 · (10, 20) = (2, 4) = v, rate 1: w = (8, 16).
    # Step 2: u = (0.2, 0.4) + 0.1 · (8, 16) = (1, 2); v = (1, 2) + (1, 2) = (2, 4), rate 2: (4, 8).
    # With the rate inside, v would be 0.5 · (2, 4) + 2 · (1, 2) = (3, 6): (5, 10).
    with jax.enable_x64(True):
        grads = [{"w": np.array([1.0, 2.0])}, {"w": np.array([0.2, 0.4])}]
        given = {"momentum": 0.5, "weight_decay": 0.1}
        params = {"w": np.array([10.0, 20.0])}
        (first, second), state = plain.run(optim.sgd(), params, grads, (1, 2), **given)
        # Tolerance: 0.1, 0.2 and 0.4 are no binary fractions.
        np.testing.assert_allclose(first["w"], (8, 16), rtol=1e-15)
        np.testing.assert_allclose(second["w"], (4, 8), rtol=1e-15)
        np.testing.assert_allclose(state.momentum["w"], (2, 4), rtol=1e-15)


def test_bfloat16_velocities_are_summed_in_float32():
    # v = 0.9 · 1.0078125 − 0.90625 = 0.00078125; rounded to bfloat16 before the sum, 0.9 v would be
    # 0.90625 and v 0. Tolerance: 8 bits.
    grads = [{"w": jnp.full(1, g, jnp.bfloat16)} for g in (1.0078125, -0.90625)]
    _, state = plain.run(optim.sgd(), {"w": jnp.ones(1, jnp.bfloat16)}, grads, (1, 1))
    assert float(state.momentum["w"][0]) == pytest.approx(0.00078125, rel=2**-8)


def test_report():
    params, grads = problem(np.float32)
    history, state = plain.run(optim.sgd(), params, grads, RATES, **OPTIONS)
    np.testing.assert_allclose(state.report.weight_norm, plain.norms(history[-2]), rtol=1e-6)
    np.testing.assert_allclose(state.report.gradient_norm, plain.norms(grads[-1]), rtol=1e-6)
    assert state.report.trust_ratio.tolist() == [1.0] * 5
    total = optax.tree.norm(plain.device(grads[-1]))
    np.testing.assert_allclose(optim.global_norm(state.report), total, rtol=1e-6)
