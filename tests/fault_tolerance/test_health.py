import json
import math

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import Facts
from largebatch.config.plan import resolve
from largebatch.errors import HealthError
from largebatch.fault_tolerance.health import Health, kept
from largebatch.parallel import REPLICATED, SPLIT
from tests.training import worlds

GUESS = math.log(worlds.CLASSES)
WELL, HIGH = 0.5, GUESS + 0.6
IMAGES = 800
CHANCE = 1 / worlds.CLASSES
EQUAL = (100,) * worlds.CLASSES
MIXED = {"augment": {"mixup": 0.2, "cutmix": 1.0}}


def plan(health=None, classes=worlds.CLASSES, **sections):
    """Of 100 steps of 800 images with 10 of warm-up; windows of 5 steps, stuck after 30 steps."""
    sections.setdefault("schedule", {})
    sections["schedule"] = {"length": "100 steps", "warmup": "10 steps"} | sections["schedule"]
    sections.setdefault("batch", {"workers": 8, "images_per_worker": 100})
    made = worlds.config(health={"window": 5} | (health or {}), **sections)
    return resolve(made, Facts(1000, 100, classes, worlds.SHAPE, devices=8))


def fed(health, losses, first=1, top1=CHANCE, images=IMAGES):
    """The verdicts on steps with these losses."""
    return [health.look(step, loss, 1.0, top1, images) for step, loss in enumerate(losses, first)]


def goes_on(health, losses, **given):
    """Whether nothing is said about any step."""
    return {(v.action, v.text) for v in fed(health, losses, **given)} == {("continue", "")}


def stopped(health, losses, first=1, top1=CHANCE, images=IMAGES):
    """The step at which the run was stopped, and the message."""
    for step, loss in enumerate(losses, first):
        try:
            health.look(step, loss, 1.0, top1, images)
        except HealthError as error:
            return step, str(error)
    return pytest.fail("it was not stopped")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient norm"])
def test_a_number_that_is_not_finite_stops_the_run(value, where):
    made, asked = plan(), []

    def newest(step):
        asked.append(step)
        return "runs/a/checkpoints/4.safetensors"

    health = Health(made, newest=newest)
    fed(health, [WELL] * 6)
    loss, norm = (value, 1.0) if where == "loss" else (WELL, value)
    with pytest.raises(HealthError) as caught:
        health.look(7, loss, norm, 0.5, IMAGES)
    for words in (
        "step 7",
        "schedule.peak=2",
        "health.policy=skip",
        "runs/a/checkpoints/4.safetensors",
    ):
        assert words in str(caught.value)
    assert set(asked) == {6}  # what was saved with this step or after it is of no use


def test_skipping_is_counted_and_bounded(monkeypatch):
    monkeypatch.setattr("largebatch.fault_tolerance.health.MAX_SKIPS", 3)
    health = Health(plan({"policy": "skip"}), memory={"skips": 1})
    assert health.look(4, WELL, math.inf, 0.5, IMAGES).action == "skipped"
    assert health.look(5, math.nan, math.nan, 0.0, IMAGES).action == "skipped"
    assert health.skips == 3
    assert health.look(6, WELL, 1.0, 0.5, IMAGES).action == "continue"
    with pytest.raises(HealthError, match=r"step 7\b.*after 3 skipped updates"):
        health.look(7, math.nan, 1.0, 0.0, IMAGES)


def test_rolling_back_is_counted_and_bounded_and_needs_a_checkpoint():
    made = plan({"policy": "rollback"})
    health = Health(made, newest=lambda step: f"c/{step // 5 * 5}")
    fed(health, [WELL] * 11)
    verdict = health.look(12, math.nan, 1.0, 0.0, IMAGES)
    assert (verdict.action, verdict.good_step) == ("rollback", 11)
    assert "c/10" in verdict.text
    assert {v.action for v in fed(health, [HIGH] * 4, first=13)} == {"continue"}
    verdict = health.look(17, HIGH, 1.0, CHANCE, IMAGES)
    assert (verdict.action, verdict.good_step) == ("rollback", 12)
    assert {v.action for v in fed(health, [HIGH] * 4, first=18)} == {"continue"}  # begun again
    with pytest.raises(HealthError, match=r"step 22\b.*after 2 rollbacks"):
        health.look(22, math.nan, 1.0, 0.0, IMAGES)


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
@pytest.mark.parametrize("saved", [[], [12], [12, 14], [8, 12]])
@pytest.mark.parametrize("diverged", [True, False])
def test_the_message_names_the_checkpoints_that_there_are(policy, saved, diverged, monkeypatch):
    """Steps 11 to 15 have a high loss, or step 11 is not finite."""
    made = plan({"policy": policy})
    monkeypatch.setattr("largebatch.fault_tolerance.health.MAX_SKIPS", 0)
    monkeypatch.setattr("largebatch.fault_tolerance.health.MAX_ROLLBACKS", 0 if 8 in saved else 2)
    newest = lambda step: max((s for s in saved if s <= step), default=None)  # noqa: E731
    health = Health(made, newest=lambda step: (n := newest(step)) and f"c/{n}")
    fed(health, [GUESS] * 10)
    _, message = stopped(health, [HIGH] * 5 if diverged else [math.nan], first=11)
    last = f"c/{8 if 8 in saved else saved[-1]}" if saved else "no checkpoint yet"
    assert message.endswith(f"before: {last}") if 8 in saved else last in message
    assert ("no checkpoint" in message) == (8 not in saved)
    assert ("--resume=never" in message) == (bool(saved) and 8 not in saved)
    rolls = policy == "rollback"
    assert ("run.checkpoint_every" in message) == (rolls and 8 not in saved)
    assert ("rollbacks" in message) == (rolls and 8 in saved)
    if diverged:
        assert ("health.policy=rollback" in message) == (not rolls and 8 in saved)


def test_divergence_is_a_whole_window_above_the_limit_after_the_warm_up():
    step, message = stopped(Health(plan()), [GUESS] * 5 + [HIGH] * 95)
    assert step == 15  # 10 of warm-up, 5 of a window
    assert "schedule.peak=2" in message
    long = plan(schedule={"warmup": "40 steps"})
    assert stopped(Health(long), [GUESS] * 5 + [HIGH] * 95)[0] == 45
    assert stopped(Health(plan({"policy": "skip"})), [GUESS] + [HIGH] * 99)[0] == 15
    unseen = plan({"stuck_after": ""})
    # One loss below is enough for none, and so is a smaller distance.
    assert goes_on(Health(unseen), [WELL if step % 5 == 0 else HIGH for step in range(100)])
    assert goes_on(Health(unseen), [GUESS + 0.49] * 100)
    assert goes_on(Health(plan({"divergence": 0.0, "stuck_after": ""})), [100.0] * 100)


@pytest.mark.parametrize(
    ("given", "images", "top1"),
    [
        ({}, 800, 0.3),  # sure of itself and mostly wrong, but far better than a guess
        ({"health": {"window": 1}}, 800, 0.2),
        ({}, 1, 0.8),  # of single images, in each of which the loss is high
        ({"health": {"window": 1}}, 8, 0.0),  # eight images prove nothing
        ({"loss": {"label_smoothing": 0.9}}, 800, 0.5),
        ({"loss": {"kind": "sigmoid"}}, 800, 0.25),
        (MIXED, 800, 0.25),
    ],
)
def test_a_network_that_is_better_than_a_guess_has_not_diverged(given, images, top1):
    given = {"health": {"stuck_after": ""} | given.get("health", {})} | {
        k: v for k, v in given.items() if k != "health"
    }
    health = Health(plan(**given))
    count = 11 if images == 8 else 100
    assert goes_on(health, [GUESS] + [20.0] * (count - 1), top1=top1, images=images)


def test_a_loss_that_is_high_from_the_start_has_not_diverged():
    """Fine-tuning begins with any loss, and falls slowly at a small rate."""
    made = plan({"stuck_after": ""}, schedule={"warmup": "0 steps"})
    assert goes_on(Health(made), np.linspace(5.0, 3.5, 100).tolist())
    assert stopped(Health(made), [5.0] * 20 + [5.6] * 80)[0] == 25
    exploded = [GUESS] + [1e4] * 99  # at the first update
    assert stopped(Health(made), exploded)[0] == 6


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
@pytest.mark.parametrize("top1", [0.0, 0.9 * CHANCE, CHANCE])
def test_a_network_that_has_never_been_better_than_a_guess_is_stuck(policy, top1):
    made = plan({"policy": policy})
    losses = (GUESS + np.tile(0.3 * np.array([1, -1, 0.5, -0.5, 0]), 20)).tolist()
    step, message = stopped(Health(made, newest=lambda step: "c/30"), losses, top1=top1)
    assert step == 40  # two spans of five steps after step 30
    for words in ("schedule.peak=2", "health.stuck_after=''", "8,000 images", "14.29%", "c/30"):
        assert words in message
    assert goes_on(Health(plan({"policy": policy, "stuck_after": ""})), losses, top1=top1)


def test_it_is_looked_for_after_the_warm_up_and_over_a_tenth_of_the_run():
    flat = [GUESS] * 400
    late = plan(schedule={"warmup": "60 steps"})
    assert stopped(Health(late), flat)[0] == 70
    longer = plan(schedule={"length": "400 steps"})
    assert stopped(Health(longer), flat)[0] == 120 + 40
    early = plan({"stuck_after": "1 step", "window": 20}, schedule={"warmup": "0 steps"})
    assert stopped(Health(early), flat)[0] == 21
    few = plan({"window": 1}, batch={"workers": 8, "images_per_worker": 1})
    assert goes_on(Health(few), flat[:100], images=8)  # 560 images after step 30 prove nothing


def learning(**given):
    """What a run has that learns: one of the signs each."""
    return pytest.param(given, id="-".join(given))


@pytest.mark.parametrize(
    "sign",
    [
        learning(top1=1.25 * CHANCE),  # in training, always a little better
        learning(once=0.5),  # in some steps of the warm-up
        learning(losses=[GUESS - 0.05] * 100),
        learning(losses=np.linspace(GUESS + 0.4, GUESS, 100).tolist()),  # it falls
        learning(evaluations={12: 0.25}),
        learning(evaluations={12: 0.1, 36: 0.16}),
        learning(evaluation_loss=GUESS - 0.05),
    ],
)
@pytest.mark.parametrize("mixed", [{}, MIXED])
def test_a_run_with_any_sign_of_learning_is_not_ended(sign, mixed):
    health = Health(plan(**mixed))
    for step in range(1, 101):
        top1 = sign.get("once", CHANCE) if 5 <= step < 10 else sign.get("top1", CHANCE)
        loss = sign.get("losses", [GUESS] * 100)[step - 1]
        assert health.look(step, loss, 1.0, top1, IMAGES).action == "continue"
        if step in sign.get("evaluations", {12: 0.1}):
            found = sign.get("evaluations", {12: 0.1})[step]
            health.look_at_evaluation(step, found, sign.get("evaluation_loss", GUESS), EQUAL)


def test_two_classes_are_not_stuck_where_the_loss_is_near_that_of_a_guess():
    """Validation 72 %, a training loss of 0.6907."""
    health = Health(plan(classes=2))
    assert goes_on(health, [0.6907] * 100, top1=0.54)
    health = Health(plan(classes=2))
    fed(health, [0.6907] * 20, top1=0.5)
    health.look_at_evaluation(20, 0.72, 0.69, (180, 180))
    assert {v.action for v in fed(health, [0.6907] * 80, first=21, top1=0.5)} == {"continue"}
    assert stopped(Health(plan(classes=2)), [math.log(2)] * 100, top1=0.5)[0] == 40


def test_the_largest_class_is_the_guess_where_classes_are_unequal():
    counts = (90, 10)
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    made = plan(classes=2, loss={"label_smoothing": 0.0})
    # It always names the largest class.
    step, message = stopped(Health(made, counts=counts), [entropy] * 100, top1=0.9)
    assert (step, "90.00%" in message) == (40, True)
    assert goes_on(Health(made, counts=counts), [entropy - 0.03] * 100, top1=0.9)
    assert goes_on(Health(made, counts=counts), [entropy] * 100, top1=0.92)
    assert {v.action for v in fed(Health(made), [entropy] * 100, top1=0.9)} == {"continue"}
    # An evaluation has counts of its own.
    health = Health(made, counts=counts)
    fed(health, [entropy] * 31, top1=0.9)
    health.look_at_evaluation(31, 0.9, math.log(2), (500, 500))
    assert {v.action for v in fed(health, [entropy] * 60, first=32, top1=0.9)} == {"continue"}


@pytest.mark.parametrize("altered", [MIXED, {"augment": {"erase": 0.2}}])
def test_altered_images_need_evaluations_and_until_then_there_is_one_warning(altered):
    made, flat = plan(**altered), [GUESS] * 60
    health = Health(made)
    texts = [verdict.text for verdict in fed(health, [GUESS] * 100)]
    assert [step for step, text in enumerate(texts, 1) if text] == [40]
    health = Health(made)
    for step in (20, 33, 36):
        health.look_at_evaluation(step, CHANCE, GUESS, EQUAL)
    assert stopped(health, flat, first=31)[0] == 40
    for few in ((5,) * worlds.CLASSES, EQUAL[:1]):  # too few images, or one class
        health = Health(made)
        for step in (33, 36):
            health.look_at_evaluation(step, max(few) / sum(few), GUESS, few)
        assert {v.action for v in fed(health, flat, first=31)} == {"continue"}


def test_who_has_learned_once_is_only_warned():
    health = Health(plan())
    assert goes_on(health, [WELL] * 20, top1=0.9)
    verdicts = fed(health, [GUESS] * 80, first=21)
    assert {v.action for v in verdicts} == {"continue"}
    assert sum(bool(v.text) for v in verdicts) == 1


def test_an_evaluation_of_learning_after_bad_ones_ends_the_doubt():
    health = Health(plan(**MIXED))
    for step in (31, 32, 33):
        health.look_at_evaluation(step, CHANCE, GUESS, EQUAL)
    health.look_at_evaluation(34, 0.157, GUESS, EQUAL)  # not significant, yet no proof of stuck
    assert {v.action for v in fed(health, [GUESS] * 60, first=31)} == {"continue"}


def share_ended(accuracies, mixed=False, runs=100):
    """The share of runs that are ended, with draws of right images and noise of the loss."""
    made, draw, ended = plan(**(MIXED if mixed else {})), np.random.default_rng(0), 0
    for _ in range(runs):
        health = Health(made)
        right = draw.binomial(IMAGES, accuracies) / IMAGES
        seen = draw.binomial(sum(EQUAL), accuracies) / sum(EQUAL)
        losses = GUESS + 0.03 + draw.normal(0, 0.02, len(accuracies))
        try:
            for step, (loss, top1) in enumerate(zip(losses, right, strict=True), 1):
                health.look(step, loss, 1.0, top1, IMAGES)
                if step % 6 == 0:
                    health.look_at_evaluation(
                        step, min(seen[step - 1], 1.02 * CHANCE), GUESS, EQUAL
                    )
        except HealthError:
            ended += 1
    return ended / runs


@pytest.mark.parametrize("mixed", [False, True])
def test_how_often_runs_are_ended(mixed):
    """By the accuracy of each step; no evaluation shows that the network is better than a guess."""
    edge = 0.25 * CHANCE * (1 - CHANCE)
    assert share_ended(np.full(100, CHANCE), mixed) > 0.97
    assert share_ended(np.full(100, CHANCE + edge), mixed) == 0
    late = np.where(np.arange(100) < 50, CHANCE - 0.01, CHANCE + 2 * edge)
    slow = np.linspace(CHANCE, CHANCE + 2 * edge, 100)
    fallen = np.where(np.arange(100) < 20, CHANCE + 2 * edge, CHANCE)
    assert share_ended(fallen, mixed) == 0  # it has learned once
    assert share_ended(late, mixed) > 0.97  # until then it had never learned
    assert share_ended(slow, mixed) < 0.2


def test_a_resumed_run_has_the_memory_of_the_earlier_attempt():
    made = plan()
    for losses, top1 in (([HIGH] * 100, CHANCE), ([GUESS] * 100, CHANCE), ([GUESS] * 100, 0.9)):
        for cut in (3, 12, 34, 39):
            health = Health(made)
            fed(health, losses[:12], top1=top1)
            if cut > 12:
                fed(health, losses[12:cut] if top1 < 0.5 else [GUESS] * (cut - 12), 13)
            memory = json.loads(json.dumps(health.memory(), allow_nan=False))
            again = Health(made, memory=memory)
            assert again.memory() == health.memory() == memory


def test_limits_of_sigmoids_are_in_units_of_their_mean_over_classes():
    """They begin at ln 2, and a guess has 1/C·ln C + (1 − 1/C)·ln(C / (C − 1))."""
    classes = worlds.CLASSES
    guess = math.log(classes) / classes + (1 - 1 / classes) * math.log(classes / (classes - 1))
    made = plan(loss={"kind": "sigmoid"})
    assert made.guess == pytest.approx(guess, rel=1e-12)
    two = plan(loss={"kind": "sigmoid", "target_threshold": 0.2}, augment={"cutmix": 1.0})
    share = 2 / classes  # of the classes of a mixed image
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert two.guess == pytest.approx(entropy, rel=1e-12)
    unseen = plan({"stuck_after": ""}, loss={"kind": "sigmoid"})
    assert goes_on(Health(unseen), [math.log(2) + 0.45 / classes] * 100)
    assert stopped(Health(unseen), [guess] * 10 + [math.log(2) + 0.55 / classes] * 90)[0] == 15
    assert goes_on(Health(made), [guess - 0.02 / classes] * 100)
    step, message = stopped(Health(made), [guess] * 100)
    assert (step, "stuck_after" in message) == (40, True)


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
