"""Cross-entropy and accuracy as sums and counts, which add up over any split of the images."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sums(NamedTuple):
    """Sums over images; scalars in at least float32, exact for counts below 2²⁴."""

    loss: jax.Array
    top1: jax.Array
    top5: jax.Array
    count: jax.Array


def classification_sums(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, label_smoothing: float
) -> Sums:
    """Return sums over images of label-smoothed softmax cross-entropy and top-k hits.

    The target of an image is (1 − s) at its label plus s / classes for all classes (Szegedy et al.
    2015, arXiv 1512.00567, section 7), as in PyTorch and MLPerf. An image with non-finite
    probabilities does not count as a hit.

    Args:
      logits: (images, classes).
      labels: (images,) integers.
      weights: (images,) 1 for an image, 0 for padding.
      label_smoothing: s.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = weights.astype(logits.dtype)
    log_probabilities = jax.nn.log_softmax(logits)
    of_label = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    loss = -(1 - label_smoothing) * of_label - label_smoothing * log_probabilities.mean(axis=1)
    # Padding may have any content; where() prevents 0 · inf from a non-finite loss.
    loss = jnp.where(weights > 0, loss * weights, 0)
    # With a logit of NaN or +inf, the label's log-probability is NaN: not a hit.
    rank = jnp.where(jnp.isnan(of_label), logits.shape[1] + 5, _rank_of_label(logits, labels))
    return Sums(
        loss=loss.sum(),
        top1=(weights * (rank < 1)).sum(),
        top5=(weights * (rank < 5)).sum(),
        count=weights.sum(),
    )


def _rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the number of classes ranked before the label (images,), with the ties of argmax."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    earlier = jnp.arange(logits.shape[1])[None, :] < labels[:, None]
    before = (logits > own) | ((own == logits) & earlier)
    return before.sum(axis=1)
