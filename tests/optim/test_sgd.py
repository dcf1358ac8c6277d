"""SGD against optax."""

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
