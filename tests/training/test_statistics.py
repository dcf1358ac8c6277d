"""Running statistics: what the modes of evaluation come to."""

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


@pytest.mark.parametrize(
    ("asked", "steps", "used"),
    [("auto", 499, "precise"), ("auto", 500, "ema"), ("ema", 10, "ema"), ("last", 10, "last")],
)
def test_statistics_of_short_runs_are_recomputed(asked, steps, used):
    made = worlds.config(norm={"statistics": asked}, schedule={"length": f"{steps} steps"})
    assert resolve(made, Facts(1000, 100, 7, (8, 8, 1), devices=1)).norm_statistics == used
