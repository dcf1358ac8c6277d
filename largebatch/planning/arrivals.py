"""Times of one worker for a step, and the arrival of the k-th of N gradients.

A step's worker times are independent draws from one distribution, times a factor that all workers
of the step share. So the k-th of N arrivals has a closed form: P(X₍ₖ₎ ≤ t) = I_F(t)(k, N−k+1), the
regularised incomplete beta function; its mean is an integral of one dimension.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

Array = np.ndarray
_NODES = 801


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
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            return ndtr((np.log(np.maximum(seconds, 0.0)) - self.mu) / self.sigma)

    def quantile(self, share: Array) -> Array:
        from scipy.special import ndtri

        return np.exp(self.mu + self.sigma * ndtri(share))

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.exp(self.mu + self.sigma * generator.standard_normal(shape))


@dataclasses.dataclass(frozen=True)
class Tailed:
    """Log-normal workers, a share of which is delayed by an exponential time in a step.

    A worker's time is B with probability 1 − p, else B₀ + D, where B is the body, B₀ its median and
    D exponential with mean ``delay``.
    """

    body: LogNormal
    share: float
    """p."""
    delay: float
    """Mean of D, seconds."""

    def cdf(self, seconds: Array) -> Array:
        late = np.maximum(np.asarray(seconds) - math.exp(self.body.mu), 0.0) / self.delay
        return (1 - self.share) * self.body.cdf(seconds) - self.share * np.expm1(-late)

    def quantile(self, share: Array) -> Array:
        share = np.asarray(share, np.float64)
        middle = math.exp(self.body.mu)
        low = np.minimum(self.body.quantile(share), middle)
        delayed = middle - self.delay * np.log1p(-share)
        high = np.maximum(self.body.quantile(share), delayed)
        for _ in range(80):  # bisections
            half = (low + high) / 2
            above = self.cdf(half) >= share
            low, high = np.where(above, low, half), np.where(above, half, high)
        return (low + high) / 2

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        delayed = math.exp(self.body.mu) + generator.exponential(self.delay, shape)
        late = generator.random(shape) < self.share
        return np.where(late, delayed, self.body.draw(generator, shape))


def arrival_cdf(
    workers: Workers, rank: int, count: int, seconds: Array, *, common: float = 0.0
) -> Array:
    """P(the rank-th of ``count`` gradients has arrived by then).

    Args:
      workers: one worker's time.
      rank: k, from 1.
      count: N.
      seconds: t.
      common: standard deviation of the logarithm of the factor that a step's workers share.
    """
    from scipy.special import betainc

    seconds = np.asarray(seconds, np.float64)
    factors, weights = np.ones(1), np.ones(1)
    if common:  # Gauss-Hermite
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        factors, weights = np.exp(common * nodes), weights / weights.sum()
    total = np.zeros_like(seconds)
    for factor, weight in zip(factors, weights, strict=True):
        total = total + weight * betainc(rank, count - rank + 1, workers.cdf(seconds / factor))
    return total


def expected_arrival(workers: Workers, rank: int, count: int, *, common: float = 0.0) -> float:
    """Mean of the time at which the rank-th of ``count`` gradients arrives.

    ∫₀¹ Q(I⁻¹ₚ(k, N−k+1)) dp by the trapezoidal rule in z = Φ⁻¹(p) from −8 to 8: beyond lie 1e-15
    of it, and where the integrand is smooth and vanishes at both ends the rule converges
    exponentially. The shared factor is independent and has its mean e^(σ²/2).
    """
    from scipy.special import betaincinv, ndtr

    nodes, weights = _normal_nodes()
    shares = betaincinv(rank, count - rank + 1, ndtr(nodes))
    shares = np.clip(shares, 1e-300, np.nextafter(1.0, 0.0))
    return float(np.sum(weights * workers.quantile(shares))) * math.exp(common**2 / 2)


def expected_slowest(sigma: float, count: int) -> float:
    """E[max of N] over E[X] for log-normal workers, by the same integral.

    The largest of N has the quantile Q(p^(1/N)).
    """
    if count == 1 or sigma == 0:
        return 1.0
    weights, normal = _slowest_nodes(count)
    return float(np.sum(weights * np.exp(sigma * normal)) / math.exp(sigma**2 / 2))


def blom_arrival(workers: LogNormal, rank: int, count: int) -> float:
    """About the median of that arrival: exp(μ + σ·Φ⁻¹((k − 3/8)/(N + 1/4))) (Blom 1958)."""
    return float(workers.quantile(np.asarray((rank - 0.375) / (count + 0.25))))


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A statement: in a share of steps the rank-th of ``count`` gradients has arrived by then."""

    rank: int
    count: int
    seconds: float
    share: float


def fit_arrivals(
    body: LogNormal, delay: float, arrivals: Sequence[Arrival], *, common: bool
) -> tuple[Tailed, float]:
    """Fit the share of delayed workers to such statements, by least squares.

    Args:
      body: of the others.
      delay: mean delay.
      arrivals: statements of equal weight.
      common: whether the workers of a step may share a factor; else they are independent.

    Returns:
      The distribution, and the standard deviation of the shared factor's logarithm.
    """
    from scipy.optimize import least_squares
    from scipy.special import expit

    def read(point: Array) -> tuple[Tailed, float]:
        return Tailed(body, float(expit(point[0])), delay), float(point[1]) if common else 0.0

    def residuals(point: Array) -> list[float]:
        workers, shared = read(point)
        return [
            float(arrival_cdf(workers, a.rank, a.count, a.seconds, common=shared)) - a.share
            for a in arrivals
        ]

    start = [-4.0, 0.1][: 2 if common else 1]
    bounds = ([-12.0, 1e-3][: len(start)], [0.0, 1.0][: len(start)])
    return read(least_squares(residuals, start, bounds=bounds, xtol=1e-12, ftol=1e-12).x)


def _normal_nodes() -> tuple[Array, Array]:
    """Nodes of the trapezoidal rule from −8 to 8, and their weights in the normal density."""
    nodes = np.linspace(-8.0, 8.0, _NODES)
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    return nodes, (nodes[1] - nodes[0]) * density


@functools.lru_cache(maxsize=256)
def _slowest_nodes(count: int) -> tuple[Array, Array]:
    from scipy.special import log_ndtr, ndtri_exp

    nodes, weights = _normal_nodes()
    return weights, ndtri_exp(log_ndtr(nodes) / count)
