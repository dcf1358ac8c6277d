"""Whether a network is better than a guess: tests on the number of images that it gets right.

The null hypothesis is a network whose prediction does not depend on the image. The best one names
the largest class, so its accuracy on n images is at most p, the share of that class, and its number
of right images has a standard deviation of at most σ = √(n·p·(1 − p)), here called a deviation.
"""

import dataclasses
import math
from collections.abc import Sequence

from largebatch.config.sections import Loss

STUCK = 600.0
"""The least n·p·(1 − p) of the training images that prove a network to be no better than a guess.

A network that is right in p + p·(1 − p)/4 of them (2 classes: 56 %, 10: 12.3 %, 1,000: 0.125 %)
stays within one deviation of a guess with a probability below 10⁻⁵."""
DIVERGED = 100.0
"""The same where all losses are high: the probability is below 10⁻⁵ at p + 0.7·p·(1 − p)
(2 classes: 68 %, 10: 16.3 %, 1,000: 0.17 %)."""
EVALUATION = 30.0
"""The same for an evaluation beside training: below 10⁻⁵ at p + 1.5·p·(1 − p) (2 classes: 88 %,
10: 23.5 %, 1,000: 0.25 %)."""
LEARNT = 5.0
"""Deviations above a guess from which training shows that a network has learned: exceeded once in
10⁵ tests of a guess, where a run has some hundred tests."""
LEARNT_IN_EVALUATION = 3.0
"""The same in an evaluation. A prediction that does not depend on the image never exceeds 0 there,
since p is counted on the same images."""
MARGIN = 0.01
"""Nats of an image by which a loss must be below that of the best guess to count as learned."""
_FALLING = 3.0
"""Standard errors by which a mean loss must be below the one before to count as falling."""
_LEAST_STEPS = 10
"""Steps from which the standard error of their mean loss is known."""


@dataclasses.dataclass(frozen=True)
class Guess:
    """The best prediction that does not depend on the image."""

    share: float
    """Its accuracy p: the share of the largest class."""
    loss: float
    """Its loss, the least of all such predictions; −inf if it is not known."""

    def deviations(self, right: int, images: int) -> float:
        """Return by how many deviations ``right`` of ``images`` exceeds the guess."""
        variance = self.variance(images)
        return (right - images * self.share) / math.sqrt(variance) if variance else 0.0

    def variance(self, images: int) -> float:
        """Return n·p·(1 − p), which measures how much ``images`` images prove."""
        return images * self.share * (1 - self.share)

    def is_matched(self, right: int, images: int, evidence: float) -> bool:
        """Return whether a network is proven to be no better.

        Args:
          right: number of images that it gets right.
          images: number of images.
          evidence: `STUCK`, `DIVERGED` or `EVALUATION`.
        """
        return self.variance(images) >= evidence and self.deviations(right, images) <= 1


def best_guess(counts: Sequence[int], loss: Loss, *, mixes: bool = False) -> Guess:
    """Return the best guess on a dataset.

    Args:
      counts: number of images of each class; equal ones if they are not known, which makes the
        share a lower bound.
      loss: its options decide the targets.
      mixes: whether pairs of images are mixed.
    """
    total, classes = sum(counts), len(counts)
    of_label = 1 - loss.label_smoothing + loss.label_smoothing / classes
    of_others = loss.label_smoothing / classes
    threshold = loss.target_threshold if loss.kind == "sigmoid" else 0.0
    least = -math.inf  # a threshold on mixed targets depends on each mixture
    if not (mixes and threshold):
        if threshold:
            of_label = float(of_label > threshold)
            of_others = float(of_others > threshold)
        # The mean target of a class is the best guess; mixing pairs does not change it.
        targets = [n / total * of_label + (1 - n / total) * of_others for n in counts]
        if loss.kind == "softmax":
            least = -sum(t * math.log(t) for t in targets if t > 0)
        else:
            both = [part for t in targets for part in (t, 1 - t)]
            least = -sum(t * math.log(t) for t in both if t > 0) / classes
    return Guess(max(counts) / total, least)


@dataclasses.dataclass
class Span:
    """Sums over consecutive steps."""

    first: int = 0
    """Number of the first step; 0: no step yet."""
    steps: int = 0
    images: int = 0
    right: int = 0
    """Number of images that the network got right."""
    loss: float = 0.0
    """Sum over the steps."""
    squares: float = 0.0
    """Sum of the squared losses."""

    def add(self, step: int, loss: float, right: int, images: int) -> None:
        """Add a step of finite loss."""
        loss = min(loss, 1e100)  # its square is finite, as the JSON of a checkpoint requires
        self.first = self.first or step
        self.steps += 1
        self.images += images
        self.right += right
        self.loss += loss
        self.squares += loss * loss

    def joined(self, later: "Span") -> "Span":
        """Return the sums over this span and the following one."""
        first, *sums = (
            (getattr(self, f.name), getattr(later, f.name)) for f in dataclasses.fields(self)
        )
        return Span(first[0] or first[1], *map(sum, sums))

    @property
    def mean(self) -> float:
        """Mean loss."""
        return self.loss / self.steps

    @property
    def error(self) -> float:
        """Standard error of the mean loss; infinite for a single step."""
        if self.steps < 2:
            return math.inf
        variance = max(0.0, self.squares - self.steps * self.mean**2) / (self.steps - 1)
        return math.sqrt(variance / self.steps)

    def has_learnt(self, guess: Guess, nats: float) -> bool:
        """Return whether accuracy or loss are better than those of a guess.

        Args:
          guess: on the training images.
          nats: of an image for one unit of the loss.
        """
        enough = guess.variance(self.images) >= EVALUATION  # below, a deviation is skewed
        if enough and guess.deviations(self.right, self.images) > LEARNT:
            return True
        least = guess.loss - MARGIN / nats
        return self.steps >= _LEAST_STEPS and self.mean + LEARNT * self.error < least

    def falls_to(self, later: "Span", guess: Guess, nats: float) -> bool:
        """Return whether the mean loss of the following span is lower beyond noise.

        Near the loss of a guess, a network that learns nothing falls a little as its learning rate
        does; there, the loss must fall by `MARGIN`.
        """
        noise = _FALLING * math.hypot(self.error, later.error)
        is_near = later.mean < guess.loss + 5 * MARGIN / nats
        return self.mean - later.mean > (max(noise, MARGIN / nats) if is_near else noise)
