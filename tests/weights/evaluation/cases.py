"""Random logits with structure, so that classes differ in how well they are found."""

import jax
import numpy as np

from largebatch.weights.evaluation.outcomes import Outcomes, gathered, kept_of

kept = jax.jit(kept_of, static_argnums=(2, 3))


def logits_and_labels(images=400, classes=7, seed=0):
    """Labels with an absent class (the last), a class that is never predicted (number 0)."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes - 1, images).astype(np.int32)
    logits = draw.normal(size=(images, classes)).astype(np.float32)
    logits[np.arange(images), labels] += 0.4 * labels
    logits[:, 0] -= 12
    return logits, labels


def outcomes_of(logits, labels, smoothing=0.0) -> Outcomes:
    return gathered([(np.arange(len(labels)), labels, kept(logits, labels, smoothing))])
