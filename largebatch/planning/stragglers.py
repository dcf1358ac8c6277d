"""Policies for late workers: closed forms, sampled steps, and asynchronous arrivals.

The distributions are in ``arrivals``. Policies after Chen et al. 2016 (arXiv 1604.00981): backup
workers. Network and update take no time here. All draws come from a seeded generator, so policies
with as many machines meet the same times.
"""

import dataclasses
import math

import numpy as np

from largebatch.errors import ConfigError
from largebatch.planning.arrivals import Array, Workers, expected_arrival

_POINTS = 8010  # of an integral over a deadline
_ROUNDING = 1 + 1e-12


@dataclasses.dataclass(frozen=True)
class Policy:
    """When a step ends.

    ``Policy()`` waits for all. With ``ignored`` = b and ``backup`` there are b machines beside the
    N, and N gradients are used. Without ``backup`` the slowest b of the N are dropped. With
    ``deadline`` s every worker accumulates ``microbatches`` until then, and contributes those that
    it has finished.
    """

    ignored: int = 0
    backup: bool = False
    deadline: float = math.inf
    microbatches: int = 1

    def __post_init__(self) -> None:
        if self.ignored < 0 or self.microbatches < 1 or self.deadline <= 0:
            raise ConfigError(
                f"policy: expected ignored ≥ 0, deadline > 0 and microbatches ≥ 1, got "
                f"{self.ignored}, {self.deadline} s and {self.microbatches}"
            )
        if self.ignored and self.deadline < math.inf:
            raise ConfigError("policy: expected a deadline or ignored workers, got both")

    def machines(self, workers: int) -> int:
        """Machines that are paid for."""
        return workers + self.ignored if self.backup else workers

    def used(self, machines: int) -> int:
        """Workers whose gradients are used, of all machines.

        Raises:
          ConfigError: there is none.
        """
        if machines <= self.ignored:
            raise ConfigError(
                f"policy: expected ignored below the {machines} machines, got {self.ignored}"
            )
        return machines - self.ignored


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The means of a policy's step."""

    step_s: float
    gradients: float
    """Workers' worth of gradients that are used."""
    machines: int
    efficiency: float
    """Gradients per second and machine, over those of a worker that never waits."""


def outcome(workers: Workers, count: int, policy: Policy, *, common: float = 0.0) -> Outcome:
    """Return the means of a policy's step from the closed forms.

    For the deadline d the step takes E[min(max, d)] = ∫₀ᵈ (1 − Fᴺ) dt and a worker contributes
    Σⱼ F(d·m/j)/m of its m microbatches, which take equally long.

    Args:
      workers: one worker's time.
      count: N, without backups.
      policy: when the step ends.
      common: as of ``arrival_cdf``.

    Raises:
      ConfigError: as many workers are dropped as there are, or a deadline meets a shared factor.
    """
    machines = policy.machines(count)
    used = policy.used(machines)
    if policy.deadline < math.inf:
        if common:
            raise ConfigError("policy: a deadline with a shared factor has no closed form; draw it")
        times = np.linspace(0.0, policy.deadline, _POINTS)
        step = float(np.trapezoid(1 - workers.cdf(times) ** count, times))
        parts = policy.microbatches
        done = workers.cdf(policy.deadline * parts / np.arange(1, parts + 1))
        gradients = count * float(np.mean(done))
    else:
        step = expected_arrival(workers, used, machines, common=common)
        gradients = float(used)
    alone = expected_arrival(workers, 1, 1) * math.exp(common**2 / 2)
    return Outcome(step, gradients, machines, gradients * alone / (machines * step))


# ---- sampled steps


@dataclasses.dataclass(frozen=True, eq=False)
class Barrier:
    """Steps that end when some workers have finished."""

    seconds: Array
    """float64 (steps,): the time of each step."""
    done: Array
    """int64 (steps, machines): the microbatches of each worker that are counted."""

    @property
    def ends(self) -> Array:
        """float64 (steps,): the time of each update."""
        return np.cumsum(self.seconds)


def draws(workers: Workers, machines: int, steps: int, seed: int, *, common: float = 0.0) -> Array:
    """Draw the seconds of each machine for each step, float64 (steps, machines)."""
    generator = np.random.default_rng(seed)
    times = workers.draw(generator, (steps, machines))
    if common:
        times = times * np.exp(common * generator.standard_normal((steps, 1)))
    return times


def barrier(times: Array, policy: Policy, microbatches: int = 1) -> Barrier:
    """Return what a policy counts of each step.

    Args:
      times: seconds (steps, machines).
      policy: with a deadline its own number of microbatches must be this one.
      microbatches: k of a worker's step, which take equally long.

    Raises:
      ConfigError: a step counts nothing, or the numbers of microbatches differ.
    """
    used = policy.used(times.shape[1])
    if policy.deadline < np.inf:
        if policy.microbatches != microbatches:
            raise ConfigError(
                f"policy.microbatches: expected the {microbatches} of a worker's step, got "
                f"{policy.microbatches}"
            )
        reached = np.floor(policy.deadline * microbatches / times * _ROUNDING)
        done = np.minimum(reached, microbatches).astype(np.int64)
        empty = np.flatnonzero(done.sum(1) == 0)
        if empty.size:
            raise ConfigError(
                f"policy.deadline: in step {empty[0] + 1} no worker has finished a microbatch "
                f"after {policy.deadline:g} s; use a later deadline or more microbatches"
            )
        return Barrier(np.minimum(times.max(1), policy.deadline), done)
    order = np.argsort(times, axis=1, kind="stable")
    done = np.zeros(times.shape, np.int64)
    np.put_along_axis(done, order[:, :used], microbatches, axis=1)
    last = np.take_along_axis(times, order[:, used - 1 : used], axis=1)[:, 0]
    return Barrier(last, done)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrivals:
    """Updates made whenever a worker's gradient arrives; arrays (updates,)."""

    ends: Array
    """float64, seconds, ascending."""
    worker: Array
    """int64: the gradient's worker."""
    part: Array
    """int64: the consecutive part of the data, numbered in the order of their begin."""
    staleness: Array
    """int64: updates by others since this worker read the parameters (τ)."""


def asynchronous(workers: Workers, machines: int, updates: int, seed: int) -> Arrivals:
    """Return the first arrivals of workers that never wait for another.

    A worker reads the parameters, computes, and its gradient is applied on arrival; it reads those
    that result. Ties go to the lower number.
    """
    generator = np.random.default_rng(seed)
    rounds = -(-updates // machines) + 8
    times = workers.draw(generator, (rounds, machines))
    # Add rows until the slowest worker is beyond the last update.
    while np.sum((ends := times.cumsum(0)) <= ends[-1].min()) < updates:
        times = np.concatenate([times, workers.draw(generator, (rounds, machines))])
    flat = ends.ravel()
    first = np.argsort(flat, kind="stable")[:updates]
    worker = first % machines
    previous = np.full(machines, -1)
    part, staleness = np.empty(updates, np.int64), np.empty(updates, np.int64)
    for update, who in enumerate(worker):
        before = previous[who]
        part[update] = machines + before if before >= 0 else who
        staleness[update] = update - (before + 1)
        previous[who] = update
    return Arrivals(flat[first], worker, part, staleness)
