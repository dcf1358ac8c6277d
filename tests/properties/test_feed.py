"""The rows that all hosts of a run see together, for any shares."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.data import (
    Augment,
    Dataset,
    Order,
    Reading,
    SourceOptions,
    evaluation_batches,
    train_microbatches,
)
from largebatch.data.feed import View
from tests.data.test_feed import Recorder

NOW = Reading(threads=0, piece_bytes=60)


class Numbered(Recorder):
    """A source in which the label is the example."""

    def read(self, ids):
        return super().read(ids)[0], ids.astype(np.int32)


@st.composite
def shared(draw, most=24):
    """A batch and how its rows are shared out: the bounds between hosts."""
    rows = draw(st.integers(1, most))
    inner = draw(st.lists(st.integers(1, rows), max_size=4))
    bounds = sorted({0, rows, *inner})
    return rows, list(itertools.pairwise(bounds))


@settings(max_examples=60)
@given(st.integers(1, 70), shared(), st.data())
def test_every_validation_example_is_seen_once(examples, batch, data):
    rows, hosts = batch
    cut = data.draw(st.integers(0, examples))
    order = np.array(data.draw(st.permutations(range(examples))), np.int64)
    views = [View((5, 5), ids) for ids in (order[:cut], order[cut:]) if len(ids)]
    dataset, seen, counts = Dataset(Numbered(examples), SourceOptions()), [], set()
    for host in hosts:
        batches = list(evaluation_batches(dataset, batch=rows, rows=host, reading=NOW, views=views))
        counts.add(len(batches))
        for one in batches:
            assert one.mask.shape == one.labels.shape == (host[1] - host[0],)
            real = one.mask == 1
            assert not one.mask[~real].any()
            assert not one.images[~real].any()
            seen.extend(one.labels[real].tolist())
    assert counts == {sum(-(-len(view.ids) // rows) for view in views)}
    assert sorted(seen) == list(range(examples))


@settings(max_examples=60)
@given(st.integers(1, 50), shared(), st.integers(0, 10**12), st.integers(1, 4), st.integers(0, 9))
def test_training_rows_of_all_hosts_follow_the_order(examples, batch, start, count, seed):
    rows, hosts = batch
    order, source = Order(seed, examples), Numbered(examples)
    dataset = Dataset(source, SourceOptions())
    parts = [
        list(
            train_microbatches(
                dataset,
                order,
                Augment(),
                start=start,
                stop=start + count * rows,
                microbatch=rows,
                rows=host,
                reading=NOW,
            )
        )
        for host in hosts
    ]
    wanted = order.ids(np.arange(start, start + count * rows)).reshape(count, rows)
    for index in range(count):
        assert {part[index].position for part in parts} == {start + index * rows}
        np.testing.assert_array_equal(
            np.concatenate([part[index].ids for part in parts]), wanted[index]
        )
        for part in parts:
            np.testing.assert_array_equal(part[index].labels, part[index].ids)
            pixels = 1 + part[index].ids % 250
            np.testing.assert_array_equal(part[index].images[:, 2, 2, 0], pixels)
    # Each host reads its own rows only.
    assert sum(len(ids) for ids in source.reads) == count * rows
