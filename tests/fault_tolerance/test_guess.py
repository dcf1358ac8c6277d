import itertools
import math

import numpy as np
import pytest

from largebatch.config.sections import Loss
from largebatch.fault_tolerance import health
from largebatch.fault_tolerance.health import Guess, Span, best_guess

SHARES = (1 / 2, 0.8, 1 / 10, 1 / 1000)
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
    [(health.STUCK, 0.25), (health.DIVERGED, 0.7), (health.EVALUATION, 1.5)],
)
def test_a_network_that_learns_is_matched_once_in_a_hundred_thousand_tests(evidence, edge, share):
    """The error rate that is stated, on the fewest images that are enough for the test."""
    guess = Guess(share, 0.0)
    images = least_images(guess, evidence)
    accuracy = min(share + edge * share * (1 - share), 1.0)
    draws = np.random.default_rng(0).binomial(images, accuracy, 1_000_000)
    most = int(images * share + math.sqrt(guess.variance(images)))
    assert guess.is_matched(most, images, evidence)
    assert not guess.is_matched(most + 1, images, evidence)
    assert np.count_nonzero(draws <= most) < 10


@pytest.mark.parametrize("share", SHARES)
def test_a_guess_is_found_to_be_one_and_not_taken_for_learning(share):
    guess = Guess(share, 0.0)
    draw = np.random.default_rng(1)
    images = least_images(guess, health.STUCK)
    right = draw.binomial(images, share, 1_000_000)
    matched = np.count_nonzero(right <= images * share + math.sqrt(guess.variance(images)))
    assert matched > 0.8 * len(right)  # four tests in five: soon one of them ends it
    assert not guess.is_matched(int(0.99 * images * share), images - 2, health.STUCK)
    for evidence in (health.EVALUATION, health.STUCK / 2, health.STUCK):
        images = least_images(guess, evidence)
        right = draw.binomial(images, share, 1_000_000)
        above = (right - images * share) / math.sqrt(guess.variance(images))
        assert np.count_nonzero(above > health.LEARNT) <= 20


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
@pytest.mark.parametrize("counts", [(5, 5), (1, 1, 1), (7, 2, 1), (95, 5)])
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


def test_mixed_targets_have_the_same_best_guess_unless_a_threshold_cuts_them():
    assert best_guess((3, 1), SMOOTHED, mixes=True) == best_guess((3, 1), SMOOTHED)
    assert best_guess((3, 1), THRESHOLD, mixes=True).loss == -math.inf


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
    assert not guess.is_matched(0, 1000, health.EVALUATION)
    one_class = best_guess((7,), Loss())
    assert one_class.deviations(7, 7) == 0
    assert not one_class.is_matched(7, 7, health.EVALUATION)


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
    assert joined.mean == np.mean(losses)
    assert joined.error == pytest.approx(np.std(losses, ddof=1) / 2)
    assert Span().joined(span([1.0], first=7)).first == 7
    assert math.isfinite(span([1e300]).squares)


def test_a_threshold_changes_only_targets_of_sigmoids():
    with_threshold = Loss(label_smoothing=0.3, target_threshold=0.2)
    assert best_guess([3, 5, 2], with_threshold) == best_guess([3, 5, 2], SMOOTHED)
    assert best_guess([3, 5, 2], THRESHOLD) != best_guess([3, 5, 2], SIGMOID)
