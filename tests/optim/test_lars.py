"""LARS against optax, against NumPy, and in the company it must keep: jit, chain, other dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.errors import ConfigError
from tests.optim import plain

RATES = (0.5, 2.0, 5.0, 3.0, 1.0, 0.25, 0.0)  # of seven steps
OPTIONS = {"trust_coefficient": 0.02, "epsilon": 1e-3}
GIVEN = {"momentum": 0.9, "weight_decay": 0.05}
MASKS = {
    "everything": {},
    "as the recipes": {"trust_mask": plain.only("kernel"), "decay_mask": plain.only("kernel")},
    "trust without decay": {"decay_mask": plain.only("scale")},
    "decay without trust": {"trust_mask": plain.only("bias")},
    "functions": {
        "trust_mask": lambda params: jax.tree.map(lambda w: w.ndim > 1, params),
        "decay_mask": lambda params: jax.tree.map(lambda w: w.ndim == 1, params),
    },
}
# float32: 7 steps of some 10 operations, each wrong by 6e-8 at most. float64: each by 1.1e-16.
CASES = [
    ("everything", False, np.float32, 1e-6),
    ("as the recipes", True, np.float64, 1e-14),
    ("trust without decay", False, np.float64, 1e-14),
    ("decay without trust", True, np.float64, 1e-14),
    ("functions", False, np.float64, 1e-14),
]


def problem(dtype, steps=7):
    rng = np.random.default_rng(5)
    params = plain.random_tree(rng, dtype)
    return params, [plain.random_tree(rng, dtype, deviation=0.1) for _ in range(steps)]


def resolved(masks, params):
    return {name: m(params) if callable(m) else m for name, m in masks.items()}


@pytest.mark.parametrize(("masks", "nesterov", "dtype", "tolerance"), CASES)
def test_optax_flavour_is_optax_lars(masks, nesterov, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        rule = optim.lars(flavour="optax", nesterov=nesterov, **OPTIONS, **MASKS[masks])
        history, _ = plain.run(rule, params, grads, RATES, **GIVEN)

        table, theirs = jnp.asarray(RATES, dtype), MASKS[masks]
        rule = optax.lars(
            lambda count: table[count],
            weight_decay=GIVEN["weight_decay"],
            weight_decay_mask=theirs.get("decay_mask", True),
            trust_coefficient=OPTIONS["trust_coefficient"],
            eps=OPTIONS["epsilon"],
            trust_ratio_mask=theirs.get("trust_mask", True),
            momentum=GIVEN["momentum"],
            nesterov=nesterov,
        )
        params, state = plain.device(params), rule.init(plain.device(params))
        for g, ours in zip(grads, history, strict=True):
            updates, state = rule.update(plain.device(g), state, params)
            params = optax.apply_updates(params, updates)
            plain.assert_close(ours, params, tolerance)


@pytest.mark.parametrize(("masks", "nesterov", "dtype", "tolerance"), CASES)
@pytest.mark.parametrize("flavour", ["mlperf", "optax"])
def test_equals_the_plain_loop(flavour, masks, nesterov, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        params, grads = problem(dtype)
        options = {**OPTIONS, "nesterov": nesterov}
        rule = optim.lars(flavour=flavour, **options, **MASKS[masks])
        history, _ = plain.run(rule, params, grads, RATES, **GIVEN)
    chosen = resolved(MASKS[masks], params)
    wanted = plain.loop(flavour, params, grads, RATES, **options, **GIVEN, **chosen)
    for ours, theirs in zip(history, wanted, strict=True):
        plain.assert_close(ours, theirs, tolerance)


def test_zero_weights_and_gradients_equal_the_plain_loop():
    with jax.enable_x64(True):
        params, grads = problem(np.float64)
        params["bn"]["scale"][:] = 0
        grads[0]["conv"]["kernel"][:] = 0
        grads[3]["head"]["kernel"][:] = 0
        for flavour in ("mlperf", "optax"):
            rule = optim.lars(flavour=flavour, **OPTIONS)
            history, _ = plain.run(rule, params, grads, RATES, **GIVEN)
            given = {"nesterov": False, **OPTIONS, **GIVEN}
            wanted = plain.loop(flavour, params, grads, RATES, **given)
            for ours, theirs in zip(history, wanted, strict=True):
                plain.assert_close(ours, theirs, 1e-14)


def test_composes_in_a_chain():
    params, grads = problem(np.float32, steps=2)
    lars = optim.lars(flavour="mlperf", **OPTIONS)
    chained = optax.chain(optax.scale(0.5), lars, optax.scale(2.0))
    history, state = plain.run(chained, params, grads, RATES[:2], **GIVEN)
    # By hand: halved gradients in, and twice the step out.
    state_by_hand, params = lars.init(plain.device(params)), plain.device(params)
    for g, rate, after in zip(grads, RATES, history, strict=False):
        halved = jax.tree.map(lambda x: jnp.asarray(x) * 0.5, g)
        rates = optim.Rates(rate, **GIVEN)
        updates, state_by_hand = lars.update(halved, state_by_hand, params, rates=rates)
        params = jax.tree.map(lambda w, u: w + 2 * u, params, updates)
        plain.assert_close(after, params, 1e-6)
    norm = optim.global_norm(state[1].report)
    np.testing.assert_allclose(norm, 0.5 * optax.tree.norm(plain.device(grads[-1])), rtol=1e-6)


def test_report_of_the_last_update():
    params, grads = problem(np.float32, steps=3)
    rule = optim.lars(flavour="mlperf", **OPTIONS, **MASKS["as the recipes"])
    history, state = plain.run(rule, params, grads, RATES[:3], **GIVEN)
    before, g = history[1], grads[-1]
    w_norm, g_norm = plain.norms(before), plain.norms(g)
    np.testing.assert_allclose(state.report.weight_norm, w_norm, rtol=1e-6)
    np.testing.assert_allclose(state.report.gradient_norm, g_norm, rtol=1e-6)
    # The leaves are bn/bias, bn/scale, conv/kernel, head/bias, head/kernel.
    ratio = 0.02 * w_norm[2] / (g_norm[2] + 0.05 * w_norm[2] + 1e-3)
    np.testing.assert_allclose(state.report.trust_ratio[2], ratio, rtol=1e-6)
    assert state.report.trust_ratio[jnp.array([0, 1, 3])].tolist() == [1.0, 1.0, 1.0]
    assert {(x.dtype, x.shape) for x in state.report} == {(np.dtype(np.float32), (5,))}
    rows = optim.by_path(state.report, params)
    assert rows["bn/scale"] == {
        "trust_ratio": 1.0,
        "weight_norm": pytest.approx(w_norm[1], rel=1e-6),
        "gradient_norm": pytest.approx(g_norm[1], rel=1e-6),
    }
    assert rows["conv/kernel"]["trust_ratio"] == pytest.approx(ratio, rel=1e-6)
    total = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(g)))
    np.testing.assert_allclose(optim.global_norm(state.report), total, rtol=1e-6)


@pytest.mark.parametrize("rule", [optim.lars(flavour="mlperf"), optim.sgd()])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_dtypes_are_kept_from_step_to_step(rule, dtype):
    with jax.enable_x64(True):
        params = {"w": jnp.ones(4, dtype)}
        first = rule.init(params)
        rate = jnp.asarray(0.1, jnp.float64)  # must not widen anything
        updates, second = rule.update({"w": params["w"]}, first, params, rates=optim.Rates(rate))
        assert updates["w"].dtype == dtype
        assert [x.dtype for x in jax.tree.leaves(first)] == [
            x.dtype for x in jax.tree.leaves(second)
        ]
        assert first.momentum["w"].dtype == dtype
        assert first.report.weight_norm.dtype == jnp.promote_types(dtype, jnp.float32)


def test_float16_norms_do_not_overflow():
    params, grads = ({"w": jnp.full(9, value, jnp.float16)} for value in (2.0, 300.0))
    rule = optim.lars(flavour="mlperf", trust_coefficient=1.0)  # 300² is beyond float16's 65504
    updates, state = rule.update(grads, rule.init(params), params, rates=optim.Rates(0.5))
    assert float(state.report.gradient_norm[0]) == 900.0
    # trust 6 / 900, so the step is 0.5 · 6 / 900 · 300 = 1; float16 has 11 bits
    np.testing.assert_allclose(updates["w"], -1.0, rtol=1e-3)


def test_a_mask_may_be_one_value_for_a_subtree():
    params, grads = problem(np.float32, steps=1)
    whole = {"conv": True, "bn": False, "head": True}
    each = {"conv": {"kernel": True}, "bn": {"scale": False, "bias": False}}
    each["head"] = {"kernel": True, "bias": True}
    one, other = (
        plain.run(
            optim.lars(flavour="mlperf", trust_mask=mask, **OPTIONS),
            params,
            grads,
            RATES[:1],
            **GIVEN,
        )[0]
        for mask in (whole, each)
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_unknown_flavour():
    with pytest.raises(ConfigError, match=r"flavour='mlperv' .* 'mlperf'\?"):
        optim.lars(flavour="mlperv")
