"""Running statistics: what the modes of evaluation come to."""

import jax
import numpy as np
import pytest

from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.training.statistics import moving_average, share_kept
from tests.training import worlds


def test_the_last_batchs_statistics_keep_nothing_of_the_past():
    facts = Facts(1000, 100, 7, (8, 8, 1), devices=1)
    last = resolve(worlds.config(norm={"statistics": "last", "momentum": 0.9}), facts)
    assert last.first_stage.norm_momentum == 0
    before, batch = ({"mean": np.full(5, value, np.float32)} for value in (3.0, 0.7))
    after = moving_average(before, batch, share_kept(1000, last.first_stage.norm_momentum))
    np.testing.assert_array_equal(after["mean"], batch["mean"])


def averaged(values, kept):
    """The moving average of (steps, features) ``values``, begun at 1, in float64."""
    with jax.enable_x64(True):
        running = {"var": np.ones(values.shape[1])}
        for step, value in enumerate(values, 1):
            running = moving_average(running, {"var": value}, kept(step))
    return np.asarray(running["var"])


def test_the_memory_is_a_share_of_the_steps_done_until_it_is_that_of_the_momentum():
    """On a line, an average lags by its memory: about (t - 1) / 42 steps (Shamir & Zhang 2013)."""
    for steps in (41, 121, 301):
        line = np.arange(1.0, steps + 1)[:, None]
        lag = steps - averaged(line, lambda step: share_kept(step, 0.99))[0]
        assert lag == pytest.approx((steps - 1) / 42, rel=1e-9)
    assert share_kept(369, 0.9) < 0.9
    assert share_kept(370, 0.9) == np.float32(0.9) == share_kept(10_000, 0.9)


@pytest.mark.parametrize(
    ("asked", "steps", "used"),
    [("auto", 499, "precise"), ("auto", 500, "ema"), ("ema", 10, "ema"), ("last", 10, "last")],
)
def test_statistics_of_short_runs_are_recomputed(asked, steps, used):
    made = worlds.config(norm={"statistics": asked}, schedule={"length": f"{steps} steps"})
    assert resolve(made, Facts(1000, 100, 7, (8, 8, 1), devices=1)).norm_statistics == used
