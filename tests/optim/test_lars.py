"""LARS against optax, with masks, in chains, and in narrow types."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
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
        for ours, expected in zip(history, plain.run_optax(rule, params, grads), strict=True):
            plain.assert_close(ours, expected, tolerance)


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
        updates, state_by_hand = jax.jit(lars.update)(halved, state_by_hand, params, rates=rates)
        params = jax.tree.map(lambda w, u: w + 2 * u, params, updates)
        plain.assert_close(after, params, 1e-6)
    norm = optim.global_norm(state[1].report)
    np.testing.assert_allclose(norm, 0.5 * optax.tree.norm(plain.device(grads[-1])), rtol=1e-6)


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
