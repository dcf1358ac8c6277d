"""Running statistics: what the modes of evaluation come to."""

from pathlib import Path

import jax
import numpy as np
import pytest

from largebatch.config import Facts, resolve
from largebatch.config.recipes import load_recipe
from largebatch.training.statistics import moving_average, share_kept
from tests.training import worlds


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
    assert last.first_stage.norm_momentum == 0
    draw = np.random.default_rng(1)
    before, batch = (jax.tree.map(np.float32, tree(draw, 5)) for _ in range(2))
    after = moving_average(before, batch, share_kept(1000, last.first_stage.norm_momentum))
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(a, b)


def averaged(values, kept):
    """The moving average of (steps, features) ``values``, begun at 1, in float64."""
    with jax.enable_x64(True):
        running = {"var": np.ones(values.shape[1])}
        for step, value in enumerate(values, 1):
            running = moving_average(running, {"var": value}, kept(step))
    return np.asarray(running["var"])


@pytest.mark.parametrize("steps", [1, 2, 34, 300])
def test_nothing_is_left_of_the_initial_values(steps):
    """Statistics that never change are met exactly; a plain average keeps 0.9 ** steps of its 1."""
    values = np.full((steps, 1), 1e-3)
    found = averaged(values, lambda step: share_kept(step, 0.9))
    np.testing.assert_allclose(found, 1e-3, rtol=1e-12)
    plain = averaged(values, lambda step: 0.9)
    np.testing.assert_allclose(plain, 1e-3 + 0.9**steps * (1 - 1e-3), rtol=1e-12)


def test_the_memory_is_a_share_of_the_steps_done_until_it_is_that_of_the_momentum():
    """On a line, an average lags by its memory: about (t - 1) / 42 steps (Shamir & Zhang 2013)."""
    for steps in (41, 121, 301):
        line = np.arange(1.0, steps + 1)[:, None]
        lag = steps - averaged(line, lambda step: share_kept(step, 0.99))[0]
        assert lag == pytest.approx((steps - 1) / 42, rel=1e-9)
    assert share_kept(369, 0.9) < 0.9
    assert share_kept(370, 0.9) == np.float32(0.9) == share_kept(10_000, 0.9)


def test_at_the_end_of_the_records_recipe_it_is_the_plain_moving_average():
    """1,440 steps, momentum 0.9, statistics over ten decades: equal to rounding of float64."""
    recipe = load_recipe(Path("configs/fujitsu2019_81920.py")).config
    plan = resolve(recipe, Facts(1_281_167, 50_000, 1000, (224, 224, 3), devices=2048))
    assert (plan.steps, plan.first_stage.norm_momentum, plan.norm_statistics) == (1440, 0.9, "ema")
    draw = np.random.default_rng(3)
    values = 10.0 ** draw.uniform(-5, 5, (plan.steps, 64))
    ours = averaged(values, lambda step: share_kept(step, plan.first_stage.norm_momentum))
    plain = averaged(values, lambda step: plan.first_stage.norm_momentum)
    np.testing.assert_allclose(ours, plain, rtol=1e-14)


@pytest.mark.parametrize(
    ("asked", "steps", "used"),
    [("auto", 499, "precise"), ("auto", 500, "ema"), ("ema", 10, "ema"), ("last", 10, "last")],
)
def test_statistics_of_short_runs_are_recomputed(asked, steps, used):
    made = worlds.config(norm={"statistics": asked}, schedule={"length": f"{steps} steps"})
    assert resolve(made, Facts(1000, 100, 7, (8, 8, 1), devices=1)).norm_statistics == used
