import itertools
import math

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import Facts
from largebatch.config.plan import resolve
from largebatch.config.sections import Loss
from largebatch.errors import HealthError
from largebatch.fault_tolerance import health as module
from largebatch.fault_tolerance.health import Guess, Health, Span, best_guess, kept
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


@pytest.mark.parametrize(
    ("policy", "saved", "words", "absent"),
    [
        ("stop", [], ["no checkpoint yet"], ["--resume=never"]),
        ("skip", [12], ["c/12", "--resume=never"], ["rollback"]),
        ("stop", [8, 12], ["c/8", "health.policy=rollback"], ["c/12", "--resume=never"]),
        ("rollback", [12], ["c/12", "--resume=never", "run.checkpoint_every"], ["c/8"]),
    ],
)
def test_the_message_names_the_checkpoints_that_there_are(policy, saved, words, absent):
    """Steps 11 to 15 have a high loss."""
    newest = lambda step: max((s for s in saved if s <= step), default=None)  # noqa: E731
    made = plan({"policy": policy})
    health = Health(made, newest=lambda step: (n := newest(step)) and f"c/{n}")
    fed(health, [GUESS] * 10)
    _, message = stopped(health, [HIGH] * 5, first=11)
    assert all(word in message for word in words)
    assert not any(word in message for word in absent)


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
        ({}, 1, 0.8),  # of single images, in each of which the loss is high
        ({"health": {"window": 1}}, 8, 0.0),  # eight images prove nothing
        ({"loss": {"label_smoothing": 0.9}}, 800, 0.5),
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


@pytest.mark.parametrize(("policy", "top1"), [("stop", 0.0), ("rollback", CHANCE)])
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
def test_a_run_with_any_sign_of_learning_is_not_ended(sign):
    health = Health(plan())
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


def test_altered_images_need_evaluations_and_until_then_there_is_one_warning():
    made, flat = plan(augment={"erase": 0.2}), [GUESS] * 60
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


def share_ended(accuracies, runs=50):
    """The share of runs that are ended, with draws of right images and noise of the loss.

    No evaluation shows that the network is better than a guess.
    """
    made, draw, ended = plan(**MIXED), np.random.default_rng(0), 0
    for _ in range(runs):
        health = Health(made)
        right = draw.binomial(IMAGES, accuracies) / IMAGES
        losses = GUESS + 0.03 + draw.normal(0, 0.02, len(accuracies))
        try:
            for step, (loss, top1) in enumerate(zip(losses, right, strict=True), 1):
                health.look(step, loss, 1.0, top1, IMAGES)
                if step % 6 == 0:
                    health.look_at_evaluation(step, CHANCE, GUESS, EQUAL)
        except HealthError:
            ended += 1
    return ended / runs


def test_how_often_runs_are_ended():
    """By the accuracy of each step."""
    edge = 0.25 * CHANCE * (1 - CHANCE)
    steps = np.arange(100)
    assert share_ended(np.full(100, CHANCE)) > 0.95
    assert share_ended(np.full(100, CHANCE + edge)) == 0
    late = np.where(steps < 50, CHANCE - 0.01, CHANCE + 2 * edge)
    assert share_ended(late) > 0.95  # until then it had never learned
    fallen = np.where(steps < 20, CHANCE + 2 * edge, CHANCE)
    assert share_ended(fallen) == 0  # it has learned once


def test_limits_of_sigmoids_are_in_units_of_their_mean_over_classes():
    """They begin at ln 2, and a guess has 1/C·ln C + (1 − 1/C)·ln(C / (C − 1))."""
    classes = worlds.CLASSES
    guess = math.log(classes) / classes + (1 - 1 / classes) * math.log(classes / (classes - 1))
    made = plan(loss={"kind": "sigmoid"})
    assert made.guess == pytest.approx(guess, rel=1e-12)
    losses = [guess] * 10 + [math.log(2) + 0.55 / classes] * 90
    assert stopped(Health(made), losses)[0] == 15
    assert goes_on(Health(made), [guess - 0.02 / classes] * 100)
    assert stopped(Health(made), [guess] * 100)[0] == 40


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


# ---- what a guess is

SHARES = (1 / 2, 1 / 1000)
SMOOTHED = Loss(label_smoothing=0.3)
SIGMOID = Loss(kind="sigmoid", label_smoothing=0.1)
THRESHOLD = Loss(kind="sigmoid", label_smoothing=0.1, target_threshold=0.2)


def span(losses, right=0, images=0, first=1):
    made = Span()
    for step, loss in enumerate(losses, first):
        made.add(step, loss, right, images)
    return made


def least_images(guess, evidence):
    return math.ceil(evidence / guess.variance(1))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    ("evidence", "edge"),
    [(module.STUCK, 0.25), (module.DIVERGED, 0.7), (module.EVALUATION, 1.5)],
)
def test_a_network_that_learns_is_matched_once_in_a_hundred_thousand_tests(evidence, edge, share):
    """The error rate that is stated, on the fewest images that are enough for the test."""
    guess = Guess(share, 0.0)
    images = least_images(guess, evidence)
    accuracy = min(share + edge * share * (1 - share), 1.0)
    draws = np.random.default_rng(0).binomial(images, accuracy, 300_000)
    most = int(images * share + math.sqrt(guess.variance(images)))
    assert guess.is_matched(most, images, evidence)
    assert not guess.is_matched(most + 1, images, evidence)
    assert np.count_nonzero(draws <= most) < 4


def constant_loss(prediction, counts, loss):
    """The mean loss of one prediction for all images, from the definition of the targets."""
    classes, total = len(counts), sum(counts)
    found = 0.0
    for label, count in enumerate(counts):
        target = np.full(classes, loss.label_smoothing / classes)
        target[label] += 1 - loss.label_smoothing
        if loss.target_threshold:
            target = (target > loss.target_threshold).astype(float)
        if loss.kind == "softmax":
            own = -(target * np.log(prediction)).sum()
        else:
            own = -(target * np.log(prediction) + (1 - target) * np.log1p(-prediction)).mean()
        found += count / total * own
    return found


@pytest.mark.parametrize("loss", [Loss(), SMOOTHED, SIGMOID, THRESHOLD])
@pytest.mark.parametrize("counts", [(5, 5), (7, 2, 1)])
def test_the_best_guess_has_the_least_loss_of_all_constant_predictions(loss, counts):
    guess = best_guess(counts, loss)
    assert guess.share == max(counts) / sum(counts)
    grid = np.linspace(0.01, 0.99, 50)
    if loss.kind == "softmax":
        points = [p for p in itertools.product(grid, repeat=len(counts) - 1) if sum(p) < 0.995]
        predictions = [np.array([*p, 1 - sum(p)]) for p in points]
    else:
        predictions = [np.array(p) for p in itertools.product(grid, repeat=len(counts))]
    if len(predictions) > 3000:
        chosen = np.random.default_rng(0).choice(len(predictions), 3000, replace=False)
        predictions = [predictions[i] for i in chosen]
    least = min(constant_loss(p, counts, loss) for p in predictions)
    assert guess.loss <= least + 1e-12
    assert least - guess.loss < 0.06


def test_a_loss_below_the_best_guess_shows_learning_where_the_accuracy_cannot():
    """Of 95 % in one class: a network that ranks images well may still name that class always."""
    guess = best_guess((95, 5), Loss())
    losses = guess.loss - 0.03 + 0.01 * np.sin(np.arange(30))
    assert span(losses, right=95, images=100).has_learnt(guess)
    assert not span(losses + 0.03, right=95, images=100).has_learnt(guess)
    noisy = guess.loss - 0.03 + 0.5 * np.sin(np.arange(30))
    assert not span(noisy, right=95, images=100).has_learnt(guess)
    assert not span(losses[:2], right=0, images=1).has_learnt(guess)


def test_few_images_show_nothing():
    guess = Guess(1 / 1000, math.log(1000))
    assert not span([9.0], right=1, images=1).has_learnt(guess)
    assert not guess.is_matched(0, 1000, module.EVALUATION)
    one_class = best_guess((7,), Loss())
    assert one_class.deviations(7, 7) == 0
    assert not one_class.is_matched(7, 7, module.EVALUATION)


def test_a_falling_loss_is_told_from_noise():
    noise = 0.2 * np.sin(np.arange(40) * 2.4)
    guess = Guess(0.1, math.log(10))
    assert span(3.0 + noise).falls_to(span(2.7 + noise), guess)
    assert not span(3.0 + noise).falls_to(span(2.95 + noise), guess)
    assert not span([2.7] * 20).falls_to(span([3.0] * 20), guess)
    slow = 1e-4 * np.sin(np.arange(40))
    assert span(2.503 + slow).falls_to(span(2.500 + slow), guess)  # a head at a small rate
    assert not span(2.323 + slow).falls_to(span(2.320 + slow), guess)
    assert span(2.323 + slow).falls_to(span(2.303 + slow), guess)


def test_spans_join_to_the_sums_of_all_their_steps():
    losses = [0.5, 1.5, 2.0, 8.0]
    joined = span(losses[:2], 3, 10).joined(span(losses[2:], 3, 10, first=3))
    assert joined == span(losses, 3, 10)
    assert (joined.first, joined.steps, joined.images, joined.right) == (1, 4, 40, 12)
    assert joined.error == pytest.approx(np.std(losses, ddof=1) / 2)
    assert math.isfinite(span([1e300]).squares)


def test_a_threshold_changes_targets_of_sigmoids_and_makes_those_of_mixtures_unknown():
    with_threshold = Loss(label_smoothing=0.3, target_threshold=0.2)
    assert best_guess([3, 5, 2], with_threshold) == best_guess([3, 5, 2], SMOOTHED)
    assert best_guess([3, 5, 2], THRESHOLD) != best_guess([3, 5, 2], SIGMOID)
    assert best_guess((3, 1), SMOOTHED, mixes=True) == best_guess((3, 1), SMOOTHED)
    assert best_guess((3, 1), THRESHOLD, mixes=True).loss == -math.inf
