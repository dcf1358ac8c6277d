import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import Facts, resolve
from largebatch.errors import ConfigError, HealthError
from largebatch.fault_tolerance.health import Health, kept
from largebatch.models.loss import classification_sums
from largebatch.parallel import REPLICATED, SPLIT
from tests.training import worlds

GUESS = math.log(worlds.CLASSES)
WELL, HIGH = 0.5, GUESS + 0.6


def plan(health=None, **sections):
    """Of 100 steps with 10 of warm-up, looked at in windows of 5; stuck after 30 steps."""
    sections.setdefault("schedule", {})
    sections["schedule"] = {"length": "100 steps", "warmup": "10 steps"} | sections["schedule"]
    made = worlds.config(health={"window": 5} | (health or {}), **sections)
    return resolve(made, Facts(1000, 100, worlds.CLASSES, worlds.SHAPE, devices=8))


def fed(health, losses, first=1):
    """The verdicts on steps with these losses."""
    return [health.look(step, loss, 1.0) for step, loss in enumerate(losses, first)]


def stopped(health, losses, first=1):
    """The step at which the run was stopped, and the message."""
    for step, loss in enumerate(losses, first):
        try:
            health.look(step, loss, 1.0)
        except HealthError as error:
            return step, str(error)
    return pytest.fail("it was not stopped")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient norm"])
def test_a_number_that_is_not_finite_stops_the_run(value, where):
    made, asked = plan(), []

    def newest(step):
        asked.append(step)
        return "runs/a/checkpoints/4"

    health = Health(made, newest=newest)
    fed(health, [WELL] * 6)
    loss, norm = (value, 1.0) if where == "loss" else (WELL, value)
    with pytest.raises(HealthError) as caught:
        health.look(7, loss, norm)
    for words in ("step 7", "schedule.peak=2", "health.policy=skip", "runs/a/checkpoints/4"):
        assert words in str(caught.value)
    assert set(asked) == {6}  # what was saved with this step or after it is of no use


def test_skipping_is_counted_and_bounded():
    health = Health(plan({"policy": "skip", "max_skips": 3}), skips=1)
    assert health.look(4, WELL, math.inf).action == "skipped"
    assert health.look(5, math.nan, math.nan).action == "skipped"
    assert health.skips == 3
    assert health.look(6, WELL, 1.0).action == "continue"
    with pytest.raises(HealthError, match="max_skips=3"):
        health.look(7, math.nan, 1.0)


def test_rolling_back_is_counted_and_bounded_and_needs_a_checkpoint():
    made = plan({"policy": "rollback", "max_rollbacks": 2})
    health = Health(made, newest=lambda step: f"c/{step // 5 * 5}")
    fed(health, [WELL] * 11)
    verdict = health.look(12, math.nan, 1.0)
    assert (verdict.action, verdict.good_step) == ("rollback", 11)
    assert "c/10" in verdict.text
    # The run goes back and comes again; its window is new.
    assert {v.action for v in fed(health, [HIGH] * 4, first=11)} == {"continue"}
    verdict = health.look(15, HIGH, 1.0)
    assert (verdict.action, verdict.good_step) == ("rollback", 10)
    with pytest.raises(HealthError, match=r"health\.max_rollbacks=2"):
        health.look(16, math.nan, 1.0)
    with pytest.raises(HealthError, match="checkpoint"):
        Health(made).look(1, math.nan, 1.0)


def test_divergence_is_a_whole_window_above_the_limit_after_the_warm_up():
    step, message = stopped(Health(plan()), [HIGH] * 100)
    assert step == 15  # 10 of warm-up, 5 of a window
    assert "schedule.peak=2" in message
    assert "health.policy=rollback" in message
    long = plan(schedule={"warmup": "40 steps"})
    assert stopped(Health(dataclasses.replace(long, stuck_after_step=0)), [HIGH] * 100)[0] == 45
    assert stopped(Health(plan({"policy": "skip"})), [HIGH] * 100)[0] == 15
    # One loss below is enough for none, and so is a smaller distance.
    losses = [WELL if step % 5 == 0 else HIGH for step in range(100)]
    assert {v.action for v in fed(Health(plan({"stuck_after": ""})), losses)} == {"continue"}
    losses = [GUESS + 0.49] * 100
    assert {v.action for v in fed(Health(plan({"stuck_after": ""})), losses)} == {"continue"}
    unseen = Health(plan({"divergence": 0.0, "stuck_after": ""}))
    assert {v.action for v in fed(unseen, [100.0] * 100)} == {"continue"}


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_a_median_like_that_of_a_guess_is_stuck_from_where_it_is_looked_for(policy):
    made = plan({"policy": policy})
    noise = 0.3 * np.array([1, -1, 0.5, -0.5, 0])  # of median 0 over a window
    losses = GUESS + np.tile(noise, 20)
    step, message = stopped(Health(made, newest=lambda step: "c/30"), losses.tolist())
    assert step == 35  # the first window whose steps all are after step 30
    assert "schedule.peak=2" in message
    assert "c/30" in message
    unseen = Health(plan({"stuck_after": ""}))
    assert {v.action for v in fed(unseen, losses.tolist())} == {"continue"}


def test_a_few_high_losses_of_a_trained_network_are_not_stuck():
    losses = [GUESS + 2.0, GUESS + 2.0, 1.0, 1.0, 1.0] * 20  # in the mean above a guess's
    assert np.mean(losses[:5]) > GUESS > np.median(losses[:5])
    assert {v.action for v in fed(Health(plan()), losses)} == {"continue"}


def test_who_has_learnt_before_is_given_a_tenth_of_the_run():
    """At the peak of the learning rate some are no better than a guess for a while."""
    learnt = [WELL] * 40
    recovering = [*learnt, *[GUESS] * 8, *[WELL] * 40]
    assert {v.action for v in fed(Health(plan()), recovering)} == {"continue"}
    step, _ = stopped(Health(plan()), [*learnt, *[GUESS] * 60])
    # The median of five is a guess's from step 43 on: 42 is the last better one.
    assert step == 42 + 10 + 1
    assert stopped(Health(plan()), [GUESS] * 60)[0] == 35  # who has learnt nothing at all


def test_who_has_learnt_a_little_is_not_stuck():
    """The right class a fiftieth likelier than by chance, from a network's own loss."""
    share = 1.02 / worlds.CLASSES
    others = (1 - share) / (worlds.CLASSES - 1)
    labels = jnp.arange(24) % worlds.CLASSES
    logits = jnp.log(jnp.where(jax.nn.one_hot(labels, worlds.CLASSES) > 0, share, others))
    loss = float(classification_sums(logits, labels, jnp.ones(24), 0.0).loss) / 24
    assert {v.action for v in fed(Health(plan()), [loss] * 100)} == {"continue"}
    # Who only knows how often each class occurs still is: frequencies like those of ImageNet.
    often = np.random.default_rng(0).uniform(0.9, 1.1, worlds.CLASSES)
    often /= often.sum()
    prior = float(-(often * np.log(often)).sum())
    assert prior < GUESS
    assert stopped(Health(plan()), [prior] * 100)[0] == 35


def test_a_resumed_run_starts_its_window_anew():
    health = Health(plan())
    assert {v.action for v in fed(health, [HIGH] * 4, first=41)} == {"continue"}
    assert stopped(health, [HIGH], first=45)[0] == 45


def state(shift):
    """What a state may hold, with values that compare unequal or equal against their bits."""
    special = np.array([np.nan, -0.0, 0.0, np.inf, 1e-40, 2.0, -3.0, 7.5], np.float32)
    return {
        "params": {"a": np.roll(special, shift), "b": np.full((3, 2), shift, np.float16)},
        "count": np.int32(shift),
    }


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


CASES = [(1.0, 2.0, True), *((a, b, False) for a in (1.0, np.nan) for b in (np.inf, np.nan))]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_step_that_is_not_finite_leaves_the_state_to_the_bit(mapped):
    mesh = parallel.make_mesh(jax.devices(), 1)
    specs = {"params": {"a": SPLIT, "b": REPLICATED}, "count": REPLICATED}
    function = kept
    if mapped:
        scalars = (REPLICATED, REPLICATED)
        function = parallel.map_over(mesh, kept, (specs, specs, *scalars), specs)
    compiled = jax.jit(function, donate_argnums=0)
    for loss, norm, fine in CASES:
        old, new = (
            jax.tree.map(jax.device_put, state(shift), parallel.placed(mesh, specs))
            for shift in (1, 2)
        )
        found = compiled(old, new, np.float32(loss), np.float32(norm))
        assert bits(found) == bits(state(2 if fine else 1))
        assert jax.tree.leaves(old)[1].is_deleted()  # it was donated
        assert all(
            np.asarray(shard.data).tobytes() == np.asarray(found["count"]).tobytes()
            for shard in found["count"].addressable_shards
        )


def test_limits_of_sigmoids_are_in_units_of_their_mean_over_classes():
    """They begin at ln 2, and a guess has 1/C·ln C + (1 − 1/C)·ln(C / (C − 1))."""
    classes = worlds.CLASSES
    guess = math.log(classes) / classes + (1 - 1 / classes) * math.log(classes / (classes - 1))
    made = plan({"stuck_after": "30 steps"}, loss={"kind": "sigmoid"})
    assert made.guess == pytest.approx(guess, rel=1e-12)
    two = plan(
        loss={"kind": "sigmoid", "target_threshold": 0.2},
        augment={"cutmix": 1.0},
        batch={"images_per_worker": 4},
    )
    share = 2 / classes  # of the classes of a mixed image
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert two.guess == pytest.approx(entropy, rel=1e-12)
    fed(Health(made), [math.log(2) + 0.45 / classes] * 15, first=11)
    fed(Health(made), [guess - 0.011 / classes] * 60)
    step, message = stopped(Health(made), [math.log(2) + 0.55 / classes] * 40)
    assert (step, "schedule.peak" in message) == (15, True)
    step, message = stopped(Health(made), [guess - 0.009 / classes] * 60)
    assert (step, "stuck_after" in message) == (35, True)


def test_a_threshold_needs_sigmoids():
    with pytest.raises(ConfigError, match=r"loss\.target_threshold=0\.2"):
        plan(loss={"target_threshold": 0.2})
