"""LAMB against optax, against NumPy with masks, and at zero norms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from tests.optim import plain

RATES = (0.01, 0.1, 0.05, 0.02)
GIVEN = {"momentum": 0.9, "weight_decay": 0.3}
# float32: √s of a first gradient, divided by itself; four steps of some thirty operations.
CASES = [("leaf", np.float64, 1e-13), ("rows", np.float32, 3e-6)]


def problem(dtype):
    draw = np.random.default_rng(9)
    params = plain.random_tree(draw, dtype)
    params["bn"]["scale"][:] = 0
    return params, [plain.random_tree(draw, dtype, 0.1) for _ in RATES]


@pytest.mark.parametrize(("layout", "dtype", "tolerance"), CASES)
def test_equals_optax(layout, dtype, tolerance):
    mask = plain.only("kernel")
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        rule = optim.lamb(decay_mask=mask, norms=optim.norms_in(layout))
        history, _ = plain.run(rule, params, grads, RATES, **GIVEN)
        table = jnp.asarray(RATES, dtype)
        theirs = optax.lamb(lambda count: table[count], 0.9, 0.999, 1e-6, 0.0, 0.3, mask)
        for ours, expected in zip(history, plain.run_optax(theirs, params, grads), strict=True):
            plain.assert_close(ours, expected, tolerance)


def test_equals_the_paper_with_masks():
    """Algorithm 2 of You et al. 2020, where only kernels have a ratio and decay."""
    with jax.enable_x64(True):
        params, grads = problem(np.float64)
        mask = plain.only("kernel")
        rule = optim.lamb(second_momentum=0.99, epsilon=1e-3, trust_mask=mask, decay_mask=mask)
        history, state = plain.run(rule, params, grads, RATES, **GIVEN)
    ratios = {}
    for module, of in params.items():
        for name, start in of.items():
            w, m, v = start.copy(), 0.0, 0.0
            for t, (tree, rate) in enumerate(zip(grads, RATES, strict=True), start=1):
                g = tree[module][name]
                m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
                r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
                ratio = 1.0
                if name == "kernel":
                    r = r + 0.3 * w
                    ratio = np.linalg.norm(w.ravel()) / np.linalg.norm(r.ravel())
                w = w - rate * ratio * r
                np.testing.assert_allclose(history[t - 1][module][name], w, rtol=0, atol=1e-13)
            ratios[f"{module}/{name}"] = ratio
            np.testing.assert_allclose(state.momentum[module][name], m, rtol=1e-13)
            np.testing.assert_allclose(state.second_moment[module][name], v, rtol=1e-13)
    rows = optim.by_path(state.report, jax.tree.leaves(optim.path_names(params)))
    assert {path: row["trust_ratio"] for path, row in rows.items()} == pytest.approx(
        ratios, rel=1e-13
    )


def test_nothing_moves_without_gradient_and_decay():
    with jax.debug_nans(True):
        rule = optim.lamb()
        params = {"w": jnp.array([3.0, 4.0]), "zero": jnp.zeros(2)}
        zeros = jax.tree.map(jnp.zeros_like, params)
        updates, state = rule.update(zeros, rule.init(params), params, rates=optim.Rates(0.1))
    assert not any(np.any(x) for x in jax.tree.leaves(updates))
    assert state.report.trust_ratio.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "rule", [optim.lamb(), optim.rmsprop_sgd(), optim.lars(flavour="mlperf"), optim.sgd()]
)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes_are_kept_from_step_to_step(rule, dtype):
    with jax.enable_x64(True):
        params = {"w": jnp.ones(4, dtype)}
        first = rule.init(params)
        given = optim.Rates(*(jnp.asarray(x, jnp.float64) for x in (0.1, 0.1, 0.9, 0.5, 1, 0)))
        updates, second = jax.jit(rule.update)(params, first, params, rates=given)
        assert updates["w"].dtype == dtype
        types = [[x.dtype for x in jax.tree.leaves(state)] for state in (first, second)]
        assert types[0] == types[1]
