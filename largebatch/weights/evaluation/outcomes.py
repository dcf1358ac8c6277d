"""What is kept of each image, and the figures of a whole split.

Nothing of images × classes is kept: logits are reduced on the device, image by image, to their five
largest and a few numbers, 70 bytes an image (3.5 MB for ImageNet's 50,000, whose logits are 200).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from largebatch.models.loss import Sums, classification_sums

TOP = 5


class Kept(NamedTuple):
    """Of each image of a batch; arrays of the device or of the host."""

    loss: Any
    """float32 (images,): −log of the label's probability, nats."""
    objective: Any
    """float32 (images,): the same with smoothed labels, as training minimises."""
    brier: Any
    """float32 (images,): Σ over classes of (probability − target)², 0 to 2."""
    of_label: Any
    """float32 (images,): the label's probability."""
    top: Any
    """int32 (images, k): the k most probable classes, −1 where probabilities are not finite; k is
    5, unless there are fewer."""
    probabilities: Any
    """float32 (images, k): theirs; NaN where they are not finite."""
    top1: Any
    """bool (images,): whether the label comes first; never where there are no probabilities."""
    top5: Any
    """bool (images,): whether it is among the first five; likewise."""


def kept_of(
    logits: jax.Array, labels: jax.Array, label_smoothing: float = 0.0, most: int = TOP
) -> Kept:
    """Reduces the logits of a batch, on the device.

    Args:
        logits: (images, classes).
        labels: int32 (images,).
        label_smoothing: Of `Kept.objective`.
        most: k of `Kept.top`, where there are as many classes.
    """

    def each(smoothing: float) -> Sums:
        def one(logits: jax.Array, label: jax.Array) -> Sums:
            return classification_sums(logits[None], label[None], jnp.ones(1), smoothing)

        return jax.vmap(one)(logits, labels)

    plain = each(0.0)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    probabilities = jax.nn.softmax(logits)
    target = jax.nn.one_hot(labels, logits.shape[1], dtype=probabilities.dtype)
    # By logits: probabilities may be equal, by rounding, where these are not.
    _, top = jax.lax.top_k(logits, min(most, logits.shape[1]))
    known = jnp.isfinite(probabilities).all(axis=1)  # top_k puts NaN first, comparisons last
    return Kept(
        loss=plain.loss,
        objective=each(label_smoothing).loss if label_smoothing else plain.loss,
        brier=jnp.square(probabilities - target).sum(axis=1),
        of_label=jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0],
        top=jnp.where(known[:, None], top, -1),
        probabilities=jnp.take_along_axis(probabilities, top, axis=1),
        top1=plain.top1 > 0,
        top5=plain.top5 > 0,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Outcomes:
    """Of all images of a split, in the order of their ids.

    Attributes:
        ids: int64 (images,), of the source.
        labels: int32 (images,), among the classes of the logits.
        kept: As of `Kept`, on the host.
    """

    ids: np.ndarray
    labels: np.ndarray
    kept: Kept

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def predicted(self) -> np.ndarray:
        """int32 (images,): the most probable class, −1 without probabilities."""
        return self.kept.top[:, 0]

    @property
    def confidence(self) -> np.ndarray:
        """float32 (images,): its probability."""
        return self.kept.probabilities[:, 0]


def gathered(parts: Sequence[tuple[np.ndarray, np.ndarray, Kept]]) -> Outcomes:
    """Joins batches.

    Args:
        parts: Ids, labels and what is kept of each batch, without padding; at least one.
    """
    ids = np.concatenate([ids for ids, _, _ in parts])
    order = np.argsort(ids, kind="stable")
    fields = zip(*(kept for _, _, kept in parts), strict=True)
    kept = Kept(*(np.concatenate([np.asarray(part) for part in f])[order] for f in fields))
    return Outcomes(ids[order], np.concatenate([labels for _, labels, _ in parts])[order], kept)


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of images, and where the true one lies.

    Attributes:
        count: Images that are meant.
        images: Of so many.
        low: Lower end of the 95 % interval (Wilson 1927), a fraction.
        high: Upper end.
    """

    count: int
    images: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The fraction itself."""
        return self.count / self.images


def share(hits: np.ndarray) -> Share:
    """How many of the images, with its interval.

    Args:
        hits: bool (images,), at least one.
    """
    return share_of(int(np.count_nonzero(hits)), len(hits))


def share_of(count: int, images: int) -> Share:
    """The same of counts."""
    from scipy.stats import binomtest  # half a second of import

    interval = binomtest(count, images).proportion_ci(0.95, method="wilson")
    return Share(count, images, float(interval.low), float(interval.high))


@dataclasses.dataclass(frozen=True)
class Figures:
    """The split in a few numbers; means are over images, summed in float64."""

    top1: Share
    top5: Share
    loss: float
    """Cross-entropy of the labels, nats."""
    objective: float
    """The same with smoothed labels."""
    brier: float
    """Mean squared distance between probabilities and the label, 0 to 2 (Brier 1950)."""
    not_finite: int
    """Images whose logits give no probabilities (NaN, +∞); they count as wrong."""


def figures(outcomes: Outcomes) -> Figures:
    """The figures of a split of at least one image."""
    kept = outcomes.kept
    return Figures(
        top1=share(kept.top1),
        top5=share(kept.top5),
        loss=float(np.mean(kept.loss, dtype=np.float64)),
        objective=float(np.mean(kept.objective, dtype=np.float64)),
        brier=float(np.mean(kept.brier, dtype=np.float64)),
        not_finite=int(np.count_nonzero(~np.isfinite(kept.brier))),
    )
