"""Parts of arrays, and statistics of parts, against the whole in float64."""

import functools

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from largebatch.parallel.mesh import cut_parts, join_parts, part_size
from largebatch.training.statistics import (
    moving_average,
    pooled,
    sum_over_spans,
    with_squared_means,
)
from largebatch.trees import flatten_paths, unflatten_paths

FINITE = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=25)
@given(hnp.array_shapes(max_dims=3, max_side=7), st.integers(1, 9))
def test_cut_and_joined_is_the_whole(shape, devices):
    array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    parts = np.asarray(cut_parts(array, devices))
    assert parts.shape == (devices, part_size(array.size, devices))
    # Consecutive elements, zeros only behind the last, and fewer of them than a part from each.
    np.testing.assert_array_equal(parts.ravel()[: array.size], array.ravel())
    assert not parts.ravel()[array.size :].any()
    assert parts.size - array.size < devices
    np.testing.assert_array_equal(join_parts(parts, shape), array)


@st.composite
def activations(draw):
    """Activations of (devices, spans, images, features)."""
    shape = tuple(draw(st.integers(1, most)) for most in (3, 3, 5, 3))
    return draw(hnp.arrays(np.float64, shape, elements=FINITE))


@settings(max_examples=60)
@given(activations())
def test_pooled_statistics_are_those_of_all_activations_at_once(values):
    """1e-12 of the largest square: E[μ² + σ²] − E[μ]² cancels at most three digits here."""
    devices, spans = values.shape[:2]
    total = None
    for device in values:
        layer = {"mean": device.mean(axis=1), "var": device.var(axis=1)}
        with jax.enable_x64(True):
            summed = sum_over_spans(with_squared_means({"bn": layer}))
        summed = jax.tree.map(np.asarray, summed)
        total = summed if total is None else jax.tree.map(np.add, total, summed)
    found = pooled(jax.tree.map(lambda x: x / (devices * spans), total))["bn"]
    whole = values.reshape(-1, values.shape[-1])
    largest = max(1.0, float(np.square(whole).max()))
    np.testing.assert_allclose(found["mean"], whole.mean(axis=0), rtol=0, atol=1e-12 * largest)
    np.testing.assert_allclose(found["var"], whole.var(axis=0), rtol=0, atol=1e-12 * largest)
    assert (found["var"] >= 0).all()


@settings(max_examples=60)
@given(hnp.arrays(np.float64, (5, 3), elements=FINITE), st.floats(0, 1))
def test_a_moving_average_is_the_weighted_sum_of_its_past(values, momentum):
    """1e-12 of the largest: five products and sums in float64."""
    with jax.enable_x64(True):
        running = {"mean": values[0]}
        for value in values[1:]:
            running = moving_average(running, {"mean": value}, momentum)
    weights = (1 - momentum) * momentum ** np.arange(len(values) - 1)[::-1]
    wanted = momentum ** (len(values) - 1) * values[0] + weights @ values[1:]
    largest = max(1.0, float(np.abs(values).max()))
    np.testing.assert_allclose(running["mean"], wanted, rtol=0, atol=1e-12 * largest)


NAMES = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=4)
TREES = st.recursive(
    st.dictionaries(NAMES, st.integers(), min_size=1, max_size=3),
    lambda trees: st.dictionaries(NAMES, st.one_of(trees, st.integers()), min_size=1, max_size=3),
    max_leaves=8,
)


@given(TREES)
def test_the_paths_of_a_tree_restore_it(tree):
    flat = flatten_paths(tree)
    assert unflatten_paths(flat) == tree
    for path, value in flat.items():
        assert functools.reduce(dict.__getitem__, path.split("/"), tree) == value
