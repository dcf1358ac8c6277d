"""Running statistics: what the modes of evaluation come to."""

import jax
import numpy as np

from largebatch.config import Facts, resolve
from largebatch.train.statistics import moving_average
from tests.train import worlds


def tree(draw, *shape):
    return {"bn": {"mean": draw.normal(size=shape), "var": draw.uniform(0.5, 2, shape)}}


def test_workers_own_moving_averages_averaged_are_the_moving_average_of_their_mean():
    """So 'local, then averaged before evaluation' needs no mode of its own; 1e-13, sums of 40."""
    draw = np.random.default_rng(0)
    workers, steps = 8, 40
    with jax.enable_x64(True):
        own = [tree(draw, 5)] * workers
        together = own[0]
        for _ in range(steps):
            batches = [tree(draw, 5) for _ in range(workers)]
            own = [moving_average(r, b, 0.9) for r, b in zip(own, batches, strict=True)]
            mean = jax.tree.map(lambda *x: sum(x) / workers, *batches)
            together = moving_average(together, mean, 0.9)
        averaged = jax.tree.map(lambda *x: sum(x) / workers, *own)
    for a, b in zip(jax.tree.leaves(averaged), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


def test_the_last_batchs_statistics_keep_nothing_of_the_past():
    facts = Facts(1000, 100, 7, (8, 8, 1), devices=1)
    last = resolve(worlds.config(norm={"statistics": "last", "momentum": 0.9}), facts)
    assert last.norm_momentum == 0
    draw = np.random.default_rng(1)
    before, batch = (jax.tree.map(np.float32, tree(draw, 5)) for _ in range(2))
    after = moving_average(before, batch, last.norm_momentum)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(a, b)
