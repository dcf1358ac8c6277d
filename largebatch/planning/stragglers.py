"""Workers that are late, what waiting for them costs, and what not waiting costs.

A step's worker times are independent draws from one distribution, times a factor that all workers
of the step share. So the k-th of N arrivals has a closed form: P(X₍ₖ₎ ≤ t) = I_F(t)(k, N−k+1), the
regularised incomplete beta function; its mean is an integral of one dimension. Monte Carlo stands
beside it. Policies after Chen et al. 2016 (arXiv 1604.00981): backup workers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from largebatch.errors import ConfigError
from largebatch.planning.arrival_models import Array, LogNormal, Tailed, Workers

_NODES = 801


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
    total = np.zeros_like(seconds)
    for factor, weight in _common(common):
        share = workers.cdf(seconds / factor)
        total = total + weight * betainc(rank, count - rank + 1, share)
    return total


def expected_arrival(workers: Workers, rank: int, count: int, *, common: float = 0.0) -> float:
    """Mean of the time at which the rank-th of ``count`` gradients arrives.

    ∫₀¹ Q(I⁻¹ₚ(k, N−k+1)) dp by the trapezoidal rule in z = Φ⁻¹(p) from −8 to 8: beyond lie 1e-15
    of it, and where the integrand is smooth and vanishes at both ends the rule converges
    exponentially. The shared factor is independent and has its mean e^(σ²/2).
    """
    from scipy.special import betaincinv, ndtr

    nodes, weights = _nodes()
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    shares = betaincinv(rank, count - rank + 1, ndtr(nodes))
    shares = np.clip(shares, 1e-300, np.nextafter(1.0, 0.0))
    alone = float(np.sum(weights * density * workers.quantile(shares)))
    return alone * math.exp(common**2 / 2)


def expected_slowest(sigma: float, count: int) -> float:
    """E[max of N] over E[X] for log-normal workers: the same integral, its nodes kept.

    The largest of N has the quantile Q(p^(1/N)).
    """
    if count == 1 or sigma == 0:
        return 1.0
    weights, normal = _slowest_nodes(count)
    return float(np.sum(weights * np.exp(sigma * normal)) / math.exp(sigma**2 / 2))


def blom_arrival(workers: LogNormal, rank: int, count: int) -> float:
    """About the median of that arrival: exp(μ + σ·Φ⁻¹((k − 3/8)/(N + 1/4))) (Blom 1958)."""
    return float(workers.quantile(np.asarray((rank - 0.375) / (count + 0.25))))


def mean_s(workers: Workers) -> float:
    """Mean of one worker's time."""
    return expected_arrival(workers, 1, 1)


@dataclasses.dataclass(frozen=True)
class Policy:
    """When a step goes on.

    ``Policy()`` waits for all. With ``ignored`` = b and ``backup`` the b machines beside the N are
    spares: N gradients are used. Without it they are among the N, whose slowest b are dropped. With
    ``deadline`` s every worker accumulates ``microbatches`` until then, and gives what it has.
    """

    ignored: int = 0
    backup: bool = False
    deadline: float = math.inf
    microbatches: int = 1

    def __post_init__(self) -> None:
        if self.ignored < 0 or self.microbatches < 1 or self.deadline <= 0:
            raise ConfigError(
                f"a policy that ignores {self.ignored} workers, with a deadline of "
                f"{self.deadline} s and {self.microbatches} microbatches, cannot be run"
            )
        if self.ignored and self.deadline < math.inf:
            raise ConfigError("a policy has a deadline or ignores workers, not both")

    def machines(self, workers: int) -> int:
        """How many are paid for."""
        return workers + self.ignored if self.backup else workers


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a policy gives, per step."""

    step_s: float
    gradients: float
    """Workers' worth of gradients that are used."""
    machines: int
    efficiency: float
    """Gradients a second and machine, over those of a worker that never waits."""


def outcome(workers: Workers, count: int, policy: Policy, *, common: float = 0.0) -> Outcome:
    """The means of a policy's step, from the closed forms.

    For the deadline d the step takes E[min(max, d)] = ∫₀ᵈ (1 − Fᴺ) dt and a worker gives
    Σⱼ F(d·m/j)/m of its m microbatches, which take it equally long.

    Raises:
      ConfigError: more workers are dropped than there are.
    """
    machines = policy.machines(count)
    wanted = machines - policy.ignored
    if wanted < 1:
        raise ConfigError(f"{policy.ignored} of {count} workers cannot be ignored; leave one")
    if policy.deadline < math.inf:
        if common:
            raise ConfigError("a deadline has no closed form beside a shared factor; simulate it")
        times = np.linspace(0.0, policy.deadline, 10 * _NODES)
        waiting = 1 - workers.cdf(times) ** count
        step = float(np.sum((waiting[1:] + waiting[:-1]) / 2) * (times[1] - times[0]))
        parts = policy.microbatches
        done = workers.cdf(policy.deadline * parts / np.arange(1, parts + 1))
        gradients = count * float(np.mean(done))
    else:
        step = expected_arrival(workers, wanted, machines, common=common)
        gradients = float(wanted)
    alone = mean_s(workers) * math.exp(common**2 / 2)
    return Outcome(step, gradients, machines, gradients * alone / (machines * step))


def simulate(
    workers: Workers,
    count: int,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    common: float = 0.0,
) -> tuple[Array, Array]:
    """The same by drawing every worker of every step.

    Returns:
      Seconds and used gradients of each step, float64[steps] each.
    """
    draw = np.random.default_rng(seed)
    machines = policy.machines(count)
    times = workers.draw(draw, (steps, machines))
    if common:
        times = times * np.exp(common * draw.standard_normal((steps, 1)))
    if policy.deadline < math.inf:
        parts = policy.microbatches
        done = np.minimum(np.floor(policy.deadline * parts / times * (1 + 1e-12)), parts) / parts
        return np.minimum(times.max(1), policy.deadline), done.sum(1)
    wanted = machines - policy.ignored
    arrivals = np.partition(times, wanted - 1, axis=1)[:, wanted - 1]
    return arrivals, np.full(steps, float(wanted))


def best_ignored(
    workers: Workers, machines: int, candidates: Sequence[int], *, common: float = 0.0
) -> int:
    """How many of so many machines to make backups, for most gradients a second."""
    if not candidates or max(candidates) >= machines:
        raise ConfigError(f"of {machines} machines 0 to {machines - 1} can be backups")
    return max(
        candidates,
        key=lambda b: (
            outcome(workers, machines - b, Policy(ignored=b, backup=True), common=common).efficiency
        ),
    )


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A statement: in a share of steps the rank-th of ``count`` gradients is there by then."""

    rank: int
    count: int
    seconds: float
    share: float


def fit_arrivals(
    body: LogNormal, delay: float, arrivals: Sequence[Arrival], *, common: bool
) -> tuple[Tailed, float]:
    """The share of workers that are held up which agrees best with such statements.

    Args:
      body: of the others.
      delay: mean of what they are held up for.
      arrivals: statements, all of them weighed alike.
      common: whether the workers of a step may share a factor; else they are independent.

    Returns:
      The distribution, and the standard deviation of the shared factor's logarithm.
    """
    from scipy.optimize import least_squares
    from scipy.special import expit

    def read(point: np.ndarray) -> tuple[Tailed, float]:
        return Tailed(body, float(expit(point[0])), delay), float(point[1]) if common else 0.0

    def residuals(point: np.ndarray) -> list[float]:
        workers, shared = read(point)
        return [
            float(arrival_cdf(workers, a.rank, a.count, a.seconds, common=shared)) - a.share
            for a in arrivals
        ]

    start = [-4.0, 0.1][: 2 if common else 1]
    bounds = ([-12.0, 1e-3][: len(start)], [0.0, 1.0][: len(start)])
    return read(least_squares(residuals, start, bounds=bounds, xtol=1e-12, ftol=1e-12).x)


def _nodes() -> tuple[Array, Array]:
    nodes = np.linspace(-8.0, 8.0, _NODES)
    return nodes, np.full(_NODES, nodes[1] - nodes[0])


@functools.lru_cache(maxsize=256)
def _slowest_nodes(count: int) -> tuple[Array, Array]:
    from scipy.special import log_ndtr, ndtri_exp

    nodes, weights = _nodes()
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    return weights * density, ndtri_exp(log_ndtr(nodes) / count)


def _common(sigma: float) -> list[tuple[float, float]]:
    """Values of the shared factor and their weights (Gauss-Hermite)."""
    if not sigma:
        return [(1.0, 1.0)]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    return list(zip(np.exp(sigma * nodes), weights / weights.sum(), strict=True))
