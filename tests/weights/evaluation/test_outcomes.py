"""Figures of a split against scikit-learn's, and the reduction of logits against NumPy's."""

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from largebatch.models.loss import classification_sums
from largebatch.weights.evaluation.outcomes import figures, gathered, share
from tests.weights.evaluation.cases import kept, logits_and_labels, outcomes_of


def test_the_figures_are_scikit_learns():
    logits, labels = logits_and_labels()
    probabilities = softmax(logits.astype(np.float64), axis=1)
    found = figures(outcomes_of(logits, labels, smoothing=0.1))
    classes = np.arange(7)
    # Ours are float32 an image: 1e-6 relative is eight units in the last place.
    assert found.loss == pytest.approx(log_loss(labels, probabilities, labels=classes), rel=1e-6)
    expected = brier_score_loss(labels, probabilities, labels=classes, scale_by_half=False)
    assert found.brier == pytest.approx(expected, rel=1e-6)
    for k, counted in ((1, found.top1), (5, found.top5)):
        assert counted.count == top_k_accuracy_score(
            labels, logits, k=k, labels=classes, normalize=False
        )
    sums = classification_sums(logits, labels, np.ones(len(labels)), 0.1)
    assert (found.top1.count, found.top5.count) == (sums.top1, sums.top5)
    assert found.objective == pytest.approx(float(sums.loss) / len(labels), rel=1e-6)
    assert found.not_finite == 0


def test_what_is_kept_of_an_image_is_what_sorting_its_logits_gives():
    logits, labels = logits_and_labels()
    logits[3, 2] = logits[3, 4] = logits[3].max() + 1  # a tie: the smaller label first, as argmax
    found = jax.device_get(kept(logits, labels))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.top, order)
    probabilities = np.asarray(jax.nn.softmax(logits))
    # Another program may round otherwise: float32, a few units in the last place.
    expected = np.take_along_axis(probabilities, order, axis=1)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-6)
    np.testing.assert_allclose(found.of_label, probabilities[np.arange(400), labels], rtol=1e-6)
    np.testing.assert_array_equal(found.top1, order[:, 0] == labels)
    np.testing.assert_array_equal(found.top5, (order == labels[:, None]).any(axis=1))
    np.testing.assert_array_equal(found.objective, found.loss)


def test_fewer_classes_than_five():
    logits, labels = logits_and_labels(classes=3)
    found = jax.device_get(kept(logits, labels))
    assert found.top.shape == found.probabilities.shape == (400, 3)
    assert found.top5.all()


def test_logits_that_are_not_finite_are_wrong_and_counted():
    logits, labels = logits_and_labels()
    logits[4] = np.nan
    found = figures(outcomes_of(logits, labels))
    assert found.not_finite == 1
    of_image = outcomes_of(logits, labels).kept
    assert not of_image.top1[4]
    assert not of_image.top5[4]


def test_batches_in_any_order_are_one_split():
    logits, labels = logits_and_labels()
    whole = outcomes_of(logits, labels)
    cuts = [np.arange(200, 400), np.arange(200)]
    parts = [(ids, labels[ids], kept(logits[ids], labels[ids])) for ids in cuts]
    found = gathered(parts)
    np.testing.assert_array_equal(found.ids, whole.ids)
    np.testing.assert_array_equal(found.labels, whole.labels)
    for one, other in zip(found.kept, whole.kept, strict=True):
        # Another batch may be vectorised otherwise: float32, a unit in the last place.
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert len(found) == 400


@pytest.mark.parametrize(("count", "images"), [(0, 10), (10, 10), (347, 360), (38_050, 50_000)])
def test_the_interval_is_wilsons(count, images):
    z = 1.959963984540054  # of the normal distribution, 97.5 %
    share_, found = count / images, share(np.arange(images) < count)
    centre = (share_ + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images)
    half *= np.sqrt(share_ * (1 - share_) / images + z**2 / (4 * images**2))
    assert (found.count, found.images, found.value) == (count, images, share_)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-12)
