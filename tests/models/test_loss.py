import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch.models import loss as losses
from largebatch.models.loss import Partners
from largebatch.weights.evaluation.inference import per_image

classification_sums = jax.jit(
    losses.classification_sums, static_argnames=("kind", "target_threshold")
)


def dense(logits, target, kind):
    """The loss of each image by its definition, with a target for every class, in float64."""
    logits = np.asarray(logits, np.float64)
    if kind == "sigmoid":
        p = 1 / (1 + np.exp(-logits))
        return -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -(target * np.log(p)).sum(1)


@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf])
def test_without_finite_probabilities_there_is_no_hit(junk):
    """Also where the label's own logit is the largest number; evaluation reports count alike."""
    logits = jnp.eye(3)[:, ::-1].at[:2, 0].set(junk)
    labels = jnp.array([2, 1, 0])
    sums = classification_sums(logits, labels, jnp.ones(3), 0.1)
    kept = per_image(logits, labels, 0.1)
    assert (sums.top1, sums.top5) == (1, 1)
    assert kept.top1.tolist() == kept.top5.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("logits", "top1", "top5"),
    [
        (np.tile([9.0, 8, 7, 6, 5, 4, -np.inf], (7, 1)), 1, 5),
        (np.zeros((7, 7)), 1, 5),  # of equals the first wins, as in argmax
        (np.eye(3), 3, 3),  # fewer than five classes
    ],
)
def test_top_k_counts(logits, top1, top5):
    classes = len(logits)
    sums = classification_sums(jnp.asarray(logits), jnp.arange(classes), jnp.ones(classes), 0.0)
    assert (sums.top1, sums.top5) == (top1, top5)


@pytest.mark.parametrize("junk", [0.0, jnp.inf, jnp.nan])
def test_padding_counts_for_nothing_whatever_it_holds(junk):
    logits = jax.random.normal(jax.random.key(0), (4, 5))
    labels = jnp.array([1, 2, 3, 4])
    alone = classification_sums(logits[:2], labels[:2], jnp.ones(2), 0.1)
    padded = logits.at[2:].set(junk)
    found = classification_sums(padded, labels, jnp.array([1.0, 1, 0, 0]), 0.1)
    np.testing.assert_allclose(found, alone, rtol=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    logits = jax.random.normal(jax.random.key(0), (4096, 5)).astype(jnp.bfloat16)
    sums = classification_sums(logits, jnp.zeros(4096, jnp.int32), jnp.ones(4096), 0.1)
    assert sums.loss.dtype == jnp.float32
    target = 0.9 * np.eye(5)[0] + 0.1 / 5
    np.testing.assert_allclose(sums.loss, dense(logits, target, "softmax").sum(), rtol=1e-5)
    assert sums.count == 4096


@pytest.mark.parametrize(
    ("kind", "threshold"), [("softmax", 0), ("sigmoid", 0), ("sigmoid", 0.2), ("sigmoid", 0.005)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixed", [False, True])
def test_targets_are_those_of_the_definition(kind, threshold, smoothing, mixed):
    """In float64; all classes pass the least threshold where labels are smoothed."""
    draw = np.random.default_rng(0)
    logits, weights = draw.normal(0, 3, (60, 11)), draw.integers(0, 2, 60)
    labels, others = draw.integers(0, 11, (2, 60))
    others[:5] = labels[:5]
    shares = draw.choice([0, 0.1, 0.15, 0.5, 0.6, 0.9, 1], 60) if mixed else np.ones(60)
    one_hot = np.eye(11)
    target = shares[:, None] * one_hot[labels] + (1 - shares[:, None]) * one_hot[others]
    target = (1 - smoothing) * target + smoothing / 11
    if threshold:
        target = (target > threshold).astype(float)
    dominant = np.where(shares >= 0.5, labels, others)
    expected = (weights * dense(logits, target, kind)).sum()
    hits = weights[logits.argmax(1) == dominant].sum()

    def loss(logits):
        partners = Partners(jnp.asarray(others), jnp.asarray(shares)) if mixed else None
        sums = classification_sums(
            logits,
            jnp.asarray(labels),
            jnp.asarray(weights, float),
            smoothing,
            kind=kind,
            target_threshold=threshold,
            partners=partners,
        )
        return sums.loss, sums

    with jax.enable_x64(True):
        gradient, sums = jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(jnp.asarray(logits)))
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-12)
    assert (sums.top1, sums.count) == (hits, weights.sum())
    if kind == "sigmoid":
        slope = (1 / (1 + np.exp(-logits)) - target) / 11
    else:
        slope = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - target
    np.testing.assert_allclose(gradient, weights[:, None] * slope, rtol=1e-10, atol=1e-14)


def test_sigmoids_in_float32_keep_large_logits():
    """log(1 + exp z) overflows from z = 89 if it is computed as written."""
    logits = jnp.array([[300.0, -300.0, 2.0], [100.0, 90.0, -100.0]])
    labels = jnp.array([0, 2])
    sums = classification_sums(logits, labels, jnp.ones(2), 0.0, kind="sigmoid")
    expected = (np.log1p(np.exp(2.0)) + 100 + 90 + 100) / 3
    np.testing.assert_allclose(sums.loss, expected, rtol=1e-6)
