"""Cross-entropy and accuracy as sums and counts, so that any split of the images adds up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sums(NamedTuple):
    """Sums over images; each a scalar, at least float32 (exact for counts below 2²⁴)."""

    loss: jax.Array
    top1: jax.Array
    top5: jax.Array
    count: jax.Array


def classification_sums(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, label_smoothing: float
) -> Sums:
    """Label-smoothed softmax cross-entropy and top-k hits, summed over images.

    An image whose probabilities are not finite is no hit, here as in `analysis`.

    The target of an image is (1 − s) at its label plus s / classes everywhere (Szegedy et al. 2015,
    arXiv 1512.00567, section 7), as in torch and MLPerf.

    Args:
      logits: (images, classes).
      labels: (images,) integers.
      weights: (images,) 1 for an image, 0 for padding.
      label_smoothing: s above.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = weights.astype(logits.dtype)
    log_probabilities = jax.nn.log_softmax(logits)
    of_label = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    loss = -(1 - label_smoothing) * of_label - label_smoothing * log_probabilities.mean(axis=1)
    # Padding may hold anything; where() keeps a non-finite loss there from spreading as 0 · inf.
    loss = jnp.where(weights > 0, loss * weights, 0)
    # A logit that is NaN or +inf leaves no probabilities, and the label's is NaN too: no hit.
    rank = jnp.where(jnp.isnan(of_label), logits.shape[1] + 5, _rank_of_label(logits, labels))
    return Sums(
        loss=loss.sum(),
        top1=(weights * (rank < 1)).sum(),
        top5=(weights * (rank < 5)).sum(),
        count=weights.sum(),
    )


def _rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the number of classes before the label's, (images,); ties as argmax has them."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    earlier = jnp.arange(logits.shape[1])[None, :] < labels[:, None]
    before = (logits > own) | ((own == logits) & earlier)
    return before.sum(axis=1)
