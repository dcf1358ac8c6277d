"""Cross-entropy and accuracy as sums and counts, which add up over any split of the images."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp


class Sums(NamedTuple):
    """Sums over images; scalars in at least float32, exact for counts below 2²⁴."""

    loss: jax.Array
    top1: jax.Array
    top5: jax.Array
    count: jax.Array


class Partners(NamedTuple):
    """The second label of mixed images."""

    labels: jax.Array
    """(images,) integers."""
    shares: jax.Array
    """(images,) share λ of the first label in the target, 0 to 1; the second has 1 − λ."""


def classification_sums(
    logits: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    label_smoothing: float,
    *,
    kind: Literal["softmax", "sigmoid"] = "softmax",
    target_threshold: float = 0.0,
    partners: Partners | None = None,
) -> Sums:
    """Return sums over images of label-smoothed cross-entropy and top-k hits.

    The target t of an image is (1 − s) at its label plus s / classes for all classes (Szegedy et
    al. 2015, arXiv 1512.00567, section 7), as in PyTorch and MLPerf. Mixed images share the 1 − s
    among two labels (Zhang et al. 2018, arXiv 1710.09412). The loss of logits z is

      softmax: −Σ_c t_c · log softmax(z)_c
      sigmoid: 1 / classes · Σ_c (log(1 + exp z_c) − t_c · z_c), the mean of the binary
        cross-entropies (Wightman et al. 2021, arXiv 2110.00476, and ``BinaryCrossEntropy`` of
        timm with reduction='mean'). With a threshold, t_c is 1 above it and 0 otherwise.

    A hit is one of the label with the larger share, the first if they are equal. An image with
    non-finite probabilities does not count as a hit.

    Args:
      logits: (images, classes).
      labels: (images,) integers.
      weights: (images,) 1 for an image, 0 for padding.
      label_smoothing: s.
      kind: see above.
      target_threshold: of the sigmoid loss; 0 for none.
      partners: second labels and shares; None if images are not mixed.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = weights.astype(logits.dtype)
    log_probabilities = jax.nn.log_softmax(logits)
    dominant = labels if partners is None else _dominant(labels, partners)
    of_label = _at(log_probabilities, dominant)
    if kind == "softmax":
        of_target = of_label if partners is None else _at(log_probabilities, labels, partners)
        loss = -(1 - label_smoothing) * of_target - label_smoothing * log_probabilities.mean(axis=1)
    else:
        loss = _sigmoid(logits, labels, label_smoothing, target_threshold, partners)
    # Padding may have any content; where() prevents 0 · inf from a non-finite loss.
    loss = jnp.where(weights > 0, loss * weights, 0)
    # With a logit of NaN or +inf, the label's log-probability is NaN: not a hit.
    rank = jnp.where(jnp.isnan(of_label), logits.shape[1] + 5, _rank_of_label(logits, dominant))
    return Sums(
        loss=loss.sum(),
        top1=(weights * (rank < 1)).sum(),
        top5=(weights * (rank < 5)).sum(),
        count=weights.sum(),
    )


def _sigmoid(
    logits: jax.Array,
    labels: jax.Array,
    label_smoothing: float,
    threshold: float,
    partners: Partners | None,
) -> jax.Array:
    """Return the mean binary cross-entropy of each image (images,), without a dense target."""
    classes = logits.shape[1]
    rest = label_smoothing / classes  # the target of all other classes
    positive = jax.nn.softplus(logits).sum(axis=1)
    if not threshold:
        of_target = (1 - label_smoothing) * _at(logits, labels, partners)
        return (positive - of_target - rest * logits.sum(axis=1)) / classes

    def passes(share: jax.Array | float) -> jax.Array:
        return jnp.asarray((1 - label_smoothing) * share + rest > threshold, logits.dtype)

    # Relative to the other classes, which all pass or all fail.
    others = passes(0.0)
    if partners is None:
        of_target = (passes(1.0) - others) * _at(logits, labels)
    else:
        shares = partners.shares.astype(logits.dtype)
        same = labels == partners.labels
        first = passes(jnp.where(same, 1, shares)) - others
        second = jnp.where(same, 0, passes(1 - shares) - others)
        of_target = first * _at(logits, labels) + second * _at(logits, partners.labels)
    return (positive - of_target - others * logits.sum(axis=1)) / classes


def _dominant(labels: jax.Array, partners: Partners) -> jax.Array:
    """Return the label of each image with the larger share (images,)."""
    return jnp.where(partners.shares >= 0.5, labels, partners.labels)


def _at(values: jax.Array, labels: jax.Array, partners: Partners | None = None) -> jax.Array:
    """Return the values (images, classes) at the labels, weighted by their shares: (images,)."""
    own = jnp.take_along_axis(values, labels[:, None], axis=1)[:, 0]
    if partners is None:
        return own
    shares = partners.shares.astype(values.dtype)
    other = jnp.take_along_axis(values, partners.labels[:, None], axis=1)[:, 0]
    return shares * own + (1 - shares) * other


def _rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the number of classes ranked before the label (images,), with the ties of argmax."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    earlier = jnp.arange(logits.shape[1])[None, :] < labels[:, None]
    before = (logits > own) | ((own == logits) & earlier)
    return before.sum(axis=1)
