"""The order of examples: permutations, for any positions in any pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from largebatch.data import Order

SEEDS = st.integers(0, 2**31 - 1)
LAST = 2**63 - 1
"""Greatest sample position."""


@st.composite
def small(draw):
    """An order whose epochs can be listed, and one of its epochs, up to the last that int64 has."""
    examples = draw(st.integers(1, 400))
    length = draw(st.one_of(st.just(0), st.integers(1, 3 * examples)))
    order = Order(draw(SEEDS), examples, draw(st.booleans()), epoch_samples=length)
    samples = length or examples
    epoch = draw(st.one_of(st.integers(0, 50), st.integers(0, LAST // samples - 1)))
    return order, epoch, samples


@given(small())
def test_an_epoch_holds_every_example_as_often_as_every_other(made):
    order, epoch, samples = made
    positions = epoch * samples + np.arange(samples, dtype=np.int64)
    ids = order.ids(positions)
    assert ids.dtype == np.int64
    counts = np.bincount(ids, minlength=order.examples)
    assert len(counts) == order.examples  # none beyond the last
    # Once if it is left alone; dropped and repeated ends differ by one at most.
    assert counts.min() == samples // order.examples
    assert counts.max() == -(-samples // order.examples)
    np.testing.assert_array_equal(order.epochs(positions), epoch)
    if not order.shuffle:
        np.testing.assert_array_equal(ids, np.arange(samples) % order.examples)


@given(small(), st.data())
def test_an_epoch_cut_short_or_prolonged_is_of_the_same_permutation(made, data):
    order, epoch, samples = made
    other = data.draw(st.integers(1, 3 * order.examples))
    epoch = min(epoch, LAST // max(samples, other) - 1)
    both = min(samples, other, order.examples)
    as_long = Order(order.seed, order.examples, order.shuffle, epoch_samples=other)
    np.testing.assert_array_equal(
        order.ids(epoch * samples + np.arange(both)), as_long.ids(epoch * other + np.arange(both))
    )


@given(st.data())
def test_an_example_depends_on_its_position_only(data):
    examples = data.draw(st.one_of(st.integers(1, 3000), st.integers(1, 2**40)))
    order = Order(data.draw(SEEDS), examples)
    near = data.draw(st.integers(0, LAST - 200))
    some = st.one_of(st.integers(near, near + 200), st.integers(0, LAST))
    positions = np.array(data.draw(st.lists(some, min_size=1, max_size=40)), np.int64)
    ids = order.ids(positions)
    assert ids.min() >= 0
    assert ids.max() < examples
    shuffled = np.array(data.draw(st.permutations(range(len(positions)))))
    np.testing.assert_array_equal(order.ids(positions[shuffled]), ids[shuffled])
    cut = data.draw(st.integers(0, len(positions)))
    parts = [order.ids(positions[:cut]), order.ids(positions[cut:])]
    np.testing.assert_array_equal(np.concatenate(parts), ids)


@given(SEEDS, st.integers(1, 2**40), st.integers(0, 2**20), st.integers(1, 60))
def test_neighbours_of_a_large_set_differ(seed, examples, epoch, count):
    count = min(count, examples)
    ids = Order(seed, examples).ids(epoch * examples + np.arange(count))
    assert len(np.unique(ids)) == count
