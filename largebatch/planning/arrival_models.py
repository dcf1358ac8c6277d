"""How long one worker takes for a step: distributions, each with its inverse."""

import dataclasses
import math
from typing import Protocol

import numpy as np

Array = np.ndarray


class Workers(Protocol):
    """The distribution of one worker's time for a step; seconds."""

    def cdf(self, seconds: Array) -> Array:
        """P(X ≤ t)."""

    def quantile(self, share: Array) -> Array:
        """The inverse of ``cdf``."""

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent times."""


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """ln X is normal with mean μ and standard deviation σ."""

    mu: float
    sigma: float

    def cdf(self, seconds: Array) -> Array:
        """P(X ≤ t)."""
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            return ndtr((np.log(np.maximum(seconds, 0.0)) - self.mu) / self.sigma)

    def quantile(self, share: Array) -> Array:
        """The inverse of ``cdf``."""
        from scipy.special import ndtri

        return np.exp(self.mu + self.sigma * ndtri(share))

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent times."""
        return np.exp(self.mu + self.sigma * generator.standard_normal(shape))


@dataclasses.dataclass(frozen=True)
class Tailed:
    """Most workers are log-normal; now and then one is held up, by an exponential time.

    A worker's time is B with probability 1 − p, else B₀ + D, where B is the body, B₀ its median and
    D exponential with mean ``delay``.
    """

    body: LogNormal
    share: float
    """p, of the workers that are held up in a step."""
    delay: float
    """Seconds; mean of what they are held up for."""

    def cdf(self, seconds: Array) -> Array:
        """P(X ≤ t)."""
        late = np.maximum(np.asarray(seconds) - math.exp(self.body.mu), 0.0) / self.delay
        return (1 - self.share) * self.body.cdf(seconds) - self.share * np.expm1(-late)

    def quantile(self, share: Array) -> Array:
        """The inverse of ``cdf``, by 80 halvings of an interval that holds it."""
        share = np.asarray(share, np.float64)
        middle = math.exp(self.body.mu)
        low = np.minimum(self.body.quantile(share), middle)
        held_up = middle - self.delay * np.log1p(-share)
        high = np.maximum(self.body.quantile(share), held_up)
        for _ in range(80):
            half = (low + high) / 2
            above = self.cdf(half) >= share
            low, high = np.where(above, low, half), np.where(above, half, high)
        return (low + high) / 2

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent times."""
        held_up = math.exp(self.body.mu) + generator.exponential(self.delay, shape)
        return np.where(
            generator.random(shape) < self.share, held_up, self.body.draw(generator, shape)
        )
