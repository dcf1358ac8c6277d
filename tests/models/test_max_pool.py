"""Our max-pool against the library's, exactly: it only selects and adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from largebatch.models.max_pool import relu_max_pool


def reference(x):
    return nnx.max_pool(jax.nn.relu(x), (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 7, 9, 3), (1, 1, 1, 2), (3, 6, 5, 4)])
def test_values_and_gradients_are_those_of_the_library(shape, dtype):
    # Few distinct values, so that many windows have several equal maxima; small integers, so that
    # sums are exact in any order.
    x = jnp.round(2 * jax.random.normal(jax.random.key(0), shape)).astype(dtype)
    shape = jax.eval_shape(reference, x).shape
    gradient = jnp.round(8 * jax.random.normal(jax.random.key(1), shape)).astype(dtype)

    @jax.jit
    def both(x, gradient):
        pairs = [jax.vjp(pool, x) for pool in (relu_max_pool, reference)]
        return [(value, pull(gradient)[0]) for value, pull in pairs]

    (got, slope), (expected, expected_slope) = both(x, gradient)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(slope, expected_slope)


def test_a_nan_is_not_lost():
    x = jnp.zeros((1, 4, 4, 1)).at[0, 3, 3, 0].set(jnp.nan)
    assert np.isnan(relu_max_pool(x)).ravel().tolist() == [False, False, False, True]


def test_backward_keeps_one_byte_an_output_and_neither_searches_nor_scatters():
    x = jnp.ones((2, 8, 8, 4))
    _, pull = jax.vjp(relu_max_pool, x)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size]
    assert sum(leaf.nbytes for leaf in kept) == 2 * 4 * 4 * 4
    text = (
        jax.jit(lambda x, g: jax.vjp(relu_max_pool, x)[1](g)).lower(x, relu_max_pool(x)).as_text()
    )
    assert "select_and_scatter" not in text
    assert "scatter" not in text
