"""Clipping by the global norm against optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from largebatch import optim
from tests.optim import plain

LIMIT = 3.0
SCALES = (0.01, 1.0, 0.1, 5.0)
"""Of the gradients of four steps: norms below the limit and above it."""


def clipped(rule):
    return optim.with_clipping(rule, LIMIT, optim.norms_in("leaf"))


def test_equals_the_rule_on_gradients_that_optax_clipped():
    """Rounding of a factor and a product: 1e-14 of the largest element."""
    ours = optim.lars(trust_mask=plain.only("kernel"))
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        params = plain.random_tree(rng)
        grads = [plain.random_tree(rng, deviation=scale) for scale in SCALES]
        norms = [np.linalg.norm(plain.norms(g)) for g in grads]
        assert {norm > LIMIT for norm in norms} == {True, False}
        theirs = optax.clip_by_global_norm(LIMIT)
        cut = [theirs.update(plain.device(g), optax.EmptyState())[0] for g in grads]
        found, state = plain.run(clipped(ours), params, grads, SCALES, weight_decay=0.1)
        expected, _ = plain.run(ours, params, cut, SCALES, weight_decay=0.1)
        for one, other in zip(found, expected, strict=True):
            plain.assert_close(one, other, 1e-14)
        np.testing.assert_allclose(optim.global_norm(state.report), norms[-1], rtol=1e-14)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(wrong):
    """The health check looks at the norm; an update of zeros would hide the fault."""
    params, grads = {"w": jnp.ones(3)}, [{"w": jnp.asarray([1.0, wrong, 1.0])}]
    (moved,), state = plain.run(clipped(optim.sgd()), params, grads, (0.5,))
    assert not np.isfinite(optim.global_norm(state.report))
    assert np.isnan(moved["w"][1])
