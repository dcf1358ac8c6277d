"""Training in stages: equal to what each stage is by itself, and resumed across their borders."""

import contextlib

import jax
import numpy as np
import pytest

from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.place import LocalPlace
from largebatch.data import fingerprint
from largebatch.tracking import Console
from largebatch.training.dispatch import run_step
from largebatch.training.evaluation import with_final_statistics
from tests.training import worlds
from tests.training.worlds import build, rows, train

STAGES = (
    "6 steps: data.image_size=6 data.shift=0",
    "10 steps: data.image_size=8 data.train_crop=centre data.shuffle=false",
)
CONFIG = worlds.digits(
    14,
    7,
    batch={"stages": STAGES},
    data={"shift": 1, "image_size": 8, "evaluation_size": 10},
    run={"checkpoint_every": "5 steps"},
)


pytestmark = pytest.mark.usefixtures("built_once")


def test_a_staged_run_is_its_stages_by_hand(tmp_path):
    """The same programs on the same microbatches, one stage after the other; bitwise."""
    summary = train(CONFIG, tmp_path, devices=8)
    made = build(CONFIG, Console(quiet=True), jax.devices())
    assert [run.plan.facts.image_shape[0] for run in made.stages] == [8, 6, 8]
    assert [run.views_of_sets["validation"][0].shape for run in made.stages] == [(10, 10)] * 3
    found = made.first_stage.init(np.int32(CONFIG.run.seed))
    for run, (first, last) in zip(made.stages, ((0, 6), (6, 10), (10, 14)), strict=True):
        feed = run.train_microbatches(80 * first, 80 * last)
        for step in range(first + 1, last + 1):
            found, _ = run_step(run, found, feed, made.plan.rates(step))
        feed.close()
    found = with_final_statistics(made.stages[-1], found, 14 * 80)  # as the last evaluation did
    with contextlib.closing(
        Checkpoints(LocalPlace(tmp_path), keep=3, warn=pytest.fail, read_only=True)
    ) as checkpoints:
        kept = checkpoints.newest(made.plan, made.first_stage.checkpoint_shapes).state
    for a, b in zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(a, b)
    assert summary.samples == 14 * 80
    # The last stage sees the data in the order of the dataset.
    orders = [stage.order.ids(np.arange(2 * 1437)).reshape(2, 1437) for stage in made.stages]
    assert [np.array_equal(*order) for order in orders] == [False, False, True]
    np.testing.assert_array_equal(orders[2][0], np.arange(1437))
    assert rows(tmp_path)[10]["fingerprint"] == fingerprint(np.arange(10 * 80, 11 * 80))


@pytest.mark.parametrize(("end", "epoch"), [("drop", 17 * 80), ("repeat", 18 * 80)])
def test_epochs_that_drop_or_repeat_are_whole_steps(end, epoch):
    made = worlds.digits(4, 4, data={"epoch_end": end}, schedule={"length": "2 epochs"})
    run = build(made, Console(quiet=True), jax.devices()[:1])
    assert (run.plan.epoch_samples, run.plan.steps) == (epoch, 2 * epoch // 80)
    ids = np.concatenate([part.ids for part in run.first_stage.local_microbatches(0, epoch)])
    assert len(np.unique(ids)) == min(epoch, 1437)
