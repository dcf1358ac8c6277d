"""A trial is the trainer's own run, and each arm has the options of its name."""

import dataclasses

import jax
import numpy as np
import pytest

from largebatch.config import Facts, override, resolve
from largebatch.errors import ConfigError
from largebatch.planning.studies import batch_size
from largebatch.planning.studies.batch_size import ARMS, Arm, Grid
from largebatch.training.session import Request, run
from tests.training import worlds

TINY = dataclasses.replace(batch_size.quick()[0], images=4, most=48)
FACTS = Facts(1437, 360, 10, (8, 8, 1), devices=1)


def config(arm, seed=0):
    """A trial of 24 workers, of a network that compiles sooner."""
    made = batch_size.config(TINY, arm, 24, seed)
    model = worlds.SMALL | {"name": "tests.training.own_models:resnet_grey"}
    return worlds.changed(made, **{f"model__{name}": str(value) for name, value in model.items()})


@pytest.fixture(scope="module")
def shared():
    return batch_size.prepared(config(Arm("lars"), seed=3))


def leaves(state):
    return jax.tree.leaves(jax.device_get(state))


@pytest.mark.slow
def test_a_trial_is_the_trainers_run(shared, tmp_path):
    """Bitwise, for a seed and schedule that the programs were not compiled for."""
    chosen = config(Arm("lars", warmup=False), seed=1)
    training = override(chosen, "health.stuck_after", "")  # it learns next to nothing
    summary = run(training, Request(tmp_path, tmp_path / "run"), devices=jax.devices()[:1])
    trial = batch_size.with_programs(shared, chosen)
    assert trial.plan.first_stage.microbatches == 2
    state = batch_size.trained(trial)
    result = batch_size.evaluated(trial, state, "precise")
    assert (result.top1, result.loss) == (summary.top1, summary.loss)
    assert batch_size.evaluated(trial, state, "ema").loss != summary.loss


@pytest.mark.slow
def test_trials_are_functions_of_seed_and_schedule(shared):
    def state(arm, seed):
        return leaves(batch_size.trained(batch_size.with_programs(shared, config(arm, seed))))

    def same(a, b):
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    first = state(Arm("lars"), 1)
    assert same(first, state(Arm("lars"), 1))
    assert not same(first, state(Arm("lars"), 2))
    assert not same(first, state(Arm("lars", warmup=False), 1))


@pytest.mark.parametrize("other", [Arm("sgd"), Arm("lars", smoothing=False)])
def test_other_programs_are_not_taken_for_these(shared, other):
    with pytest.raises(ConfigError, match="trial: expected to differ"):
        batch_size.with_programs(shared, config(other))


def test_every_arm_at_every_batch_has_the_options_of_its_name():
    grid = Grid()
    base = grid.workers[0] * grid.images
    for arm in ARMS:
        for workers in grid.workers:
            plan = resolve(batch_size.config(grid, arm, workers), FACTS)
            config, batch = plan.config, workers * grid.images
            assert plan.first_stage.samples_per_step == batch
            assert plan.first_stage.span == 1
            assert plan.first_stage.local_images <= grid.most
            # Whole steps, and at least as many epochs as asked for.
            assert 0 <= plan.samples - grid.epochs * 1437 < batch
            growth = batch / base
            first = resolve(batch_size.config(grid, arm, grid.workers[0]), FACTS).schedule.peak
            scaled = growth if arm.rule == "sgd" else growth**0.5
            assert plan.schedule.peak == pytest.approx(first * scaled, rel=1e-12)
            assert plan.rates(1).learning_rate == (0 if arm.warmup else plan.schedule.peak)
            assert config.loss.label_smoothing == (0.1 if arm.smoothing else 0)
            assert config.optimizer.name == arm.rule
            # Precise statistics of about one epoch, whatever the batch.
            assert 0.9 < config.norm.precise_batches * batch / 1437 < 1.1
    assert len({arm.name for arm in ARMS}) == len(ARMS) == 6
