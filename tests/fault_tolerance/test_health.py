import itertools
import json
import math

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.config.sections import Loss
from largebatch.errors import HealthError
from largebatch.fault_tolerance import health as module
from largebatch.fault_tolerance.health import Guess, Health, best_guess, kept
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


def test_skipping_is_counted_and_bounded():
    health = Health(plan({"policy": "skip"}), memory={"skips": 8})
    assert health.look(4, WELL, math.inf, 0.5, IMAGES).action == "skipped"
    assert health.look(5, math.nan, math.nan, 0.0, IMAGES).action == "skipped"
    assert health.skips == 10
    assert health.look(6, WELL, 1.0, 0.5, IMAGES).action == "continue"
    with pytest.raises(HealthError, match=r"step 7\b.*after 10 skipped updates"):
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
    ("dtype", "scale", "helps"),
    [("float32", 1.0, False), ("float32", 8.0, False), ("float16", 1.0, False),
     ("float16", 8.0, True)],
)  # fmt: skip
def test_a_lower_loss_scale_is_advised_where_it_helps(dtype, scale, helps):
    health = Health(plan(model={"dtype": dtype}, loss={"scale": scale}))
    _, message = stopped(health, [math.nan])
    assert ("loss.scale" in message) == helps


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


def end_of(losses, top1=CHANCE, images=IMAGES, evaluations=None, counts=None, **options):
    """The step that ends a run; with a minus, that of its one warning; 0 if nothing is said."""
    health, warned = Health(plan(**options), counts=counts), 0
    for step, loss in enumerate(losses, 1):
        try:
            verdict = health.look(step, loss, 1.0, top1(step) if callable(top1) else top1, images)
        except HealthError:
            return step
        assert verdict.action == "continue"
        if verdict.text:
            assert not warned
            warned = -step
        if step in (evaluations or {}):
            health.look_at_evaluation(step, *evaluations[step])
    return warned


FLAT, UNSEEN = [GUESS] * 100, {"health": {"stuck_after": ""}}
LATE = [GUESS] * 5 + [HIGH] * 95
NOISE = 0.2 * np.sin(np.arange(100) * 2.4)
SURE = [GUESS] + [20.0] * 99  # of itself, and often wrong
NONE_BETTER = (CHANCE, GUESS, EQUAL)
UNEQUAL = {"classes": 2, "loss": {"label_smoothing": 0.0}}
ENTROPY = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))


@pytest.mark.parametrize(
    ("expected", "losses", "given"),
    [
        # Diverged: a whole window above the limit after the warm-up, with too few right images.
        (15, LATE, {}),
        (45, LATE, {"schedule": {"warmup": "40 steps"}}),
        (15, LATE, {"health": {"policy": "skip"}}),
        (0, [WELL if step % 5 == 0 else HIGH for step in range(100)], UNSEEN),
        (0, [GUESS + 0.49] * 100, UNSEEN),
        (0, [100.0] * 100, {"health": {"divergence": 0.0, "stuck_after": ""}}),
        (0, SURE, {"top1": 0.3, **UNSEEN}),
        (0, SURE, {"top1": 0.5, "loss": {"label_smoothing": 0.9}, **UNSEEN}),
        (0, SURE, {"top1": 0.8, "images": 1, **UNSEEN}),  # of single images
        (0, SURE[:11], {"top1": 0.0, "images": 8, **UNSEEN}),  # eight prove nothing
        # A loss that is high from the start, as in fine-tuning, has not diverged.
        (0, np.linspace(5.0, 3.5, 100), {"schedule": {"warmup": "0 steps"}, **UNSEEN}),
        (25, [5.0] * 20 + [5.6] * 80, {"schedule": {"warmup": "0 steps"}, **UNSEEN}),
        (6, [GUESS] + [1e4] * 99, {"schedule": {"warmup": "0 steps"}, **UNSEEN}),
        # Stuck: two spans of five steps after step 30 and the warm-up, or a tenth of the run.
        (40, FLAT, {}),
        (40, FLAT, {"top1": 0.0}),
        (0, FLAT, UNSEEN),
        (70, FLAT, {"schedule": {"warmup": "60 steps"}}),
        (160, FLAT * 4, {"schedule": {"length": "400 steps"}}),
        (
            21,
            FLAT,
            {
                "health": {"stuck_after": "1 step", "window": 20},
                "schedule": {"warmup": "0 steps"},
            },
        ),
        (0, FLAT, {"images": 8, "health": {"window": 1}}),  # 560 images prove nothing
        # Any sign of learning.
        (0, FLAT, {"top1": 1.25 * CHANCE}),
        (0, [GUESS - 0.05] * 100, {}),
        (0, np.linspace(GUESS + 0.4, GUESS, 100), {}),
        (0, np.linspace(GUESS + 0.3, GUESS + 0.25, 100), {}),  # a head at a small rate
        (40, np.linspace(GUESS + 0.03, GUESS + 0.02, 100), {}),  # but near a guess it is noise
        (40, GUESS + 0.2 - 0.001 * np.arange(100) + NOISE, {}),
        (40, GUESS - 0.05 + NOISE, {}),
        (0, FLAT, {"evaluations": {12: NONE_BETTER, 36: (0.16, GUESS, EQUAL)}}),
        (0, FLAT, {"evaluations": {12: (0.25, GUESS, EQUAL)}}),
        # Who has learned once is only warned.
        (-40, FLAT, {"evaluations": {12: (CHANCE, GUESS - 0.05, EQUAL)}}),
        (-40, FLAT, {"evaluations": {12: (0.25, GUESS, EQUAL), 36: NONE_BETTER}}),
        (-40, FLAT, {"top1": lambda step: 0.2 if 5 <= step < 10 else CHANCE}),
        (40, FLAT, {"top1": lambda step: CHANCE + 0.016 if 5 <= step < 10 else CHANCE}),
        # Two classes: a loss near that of a guess, and a validation accuracy of 72 %.
        (0, [0.6907] * 100, {"classes": 2, "top1": 0.54}),
        (
            0,
            [0.6907] * 100,
            {"classes": 2, "top1": 0.5, "evaluations": {20: (0.72, 0.69, (180, 180))}},
        ),
        (40, [math.log(2)] * 100, {"classes": 2, "top1": 0.5}),
        # The guess is the largest class.
        (40, [ENTROPY] * 100, {"counts": (90, 10), "top1": 0.9, **UNEQUAL}),
        (0, [ENTROPY] * 100, {"counts": (90, 10), "top1": 0.92, **UNEQUAL}),
        (0, [ENTROPY - 0.03] * 100, {"counts": (90, 10), "top1": 0.9, **UNEQUAL}),
        (0, [ENTROPY] * 100, {"top1": 0.9, **UNEQUAL}),
        # Altered images prove nothing without two evaluations, of enough images and classes.
        (-40, FLAT, {"augment": {"erase": 0.2}}),
        (40, FLAT, {"evaluations": dict.fromkeys((33, 36), NONE_BETTER), **MIXED}),
        (-40, FLAT[:41], {"evaluations": {36: NONE_BETTER}, **MIXED}),
        (
            -40,
            FLAT,
            {"evaluations": {36: (CHANCE, GUESS, (5,) * 7), 39: (1.0, GUESS, (100,))}, **MIXED},
        ),
        # Sigmoids begin at ln 2, and their losses are means over the classes.
        (15, [0.41] * 10 + [math.log(2) + 0.55 / 7] * 90, {"loss": {"kind": "sigmoid"}}),
    ],
)
def test_runs_are_ended_or_not(expected, losses, given):
    assert end_of(losses, **given) == expected


def test_the_guess_of_sigmoids_is_a_mean_over_the_classes():
    """It has 1/C·ln C + (1 − 1/C)·ln(C / (C − 1))."""
    classes = worlds.CLASSES
    guess = math.log(classes) / classes + (1 - 1 / classes) * math.log(classes / (classes - 1))
    made = plan(loss={"kind": "sigmoid"})
    assert made.guess == pytest.approx(guess, rel=1e-12)
    step, message = stopped(Health(made), [guess] * 100)
    assert step == 40
    assert all(option in message for option in ("schedule.peak=2", "health.stuck_after=''"))
    assert end_of([guess - 0.02 / classes] * 100, loss={"kind": "sigmoid"}) == 0


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


def test_a_step_that_is_not_finite_leaves_the_state_to_the_bit():
    mesh = parallel.make_mesh(jax.devices(), 1)
    specs = {"params": {"a": SPLIT, "b": REPLICATED}, "count": REPLICATED}
    function = parallel.map_over(mesh, kept, (specs, specs, REPLICATED, REPLICATED), specs)
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


def test_targets_of_mixtures_beyond_a_threshold_are_unknown():
    assert best_guess((3, 1), SMOOTHED, mixes=True) == best_guess((3, 1), SMOOTHED)
    assert best_guess((3, 1), THRESHOLD, mixes=True).loss == -math.inf


def test_the_error_of_a_mean_loss_is_numpys():
    losses, span = np.random.default_rng(0).normal(2.0, 0.3, 7), module.Span()
    for step, loss in enumerate(losses, 1):
        span.add(step, loss, right=0, images=1)
    expected = losses.std(ddof=1) / math.sqrt(len(losses))
    assert span.error == pytest.approx(expected, rel=1e-12)  # sums of squares near 4


def test_a_huge_loss_can_be_stored_in_a_checkpoint():
    health = Health(plan())
    fed(health, [1e300] * 3)
    json.dumps(health.memory(), allow_nan=False)
