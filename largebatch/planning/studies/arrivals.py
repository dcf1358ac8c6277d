"""Who has finished when: the sampled worker times of a run, and what they mean for its updates.

All draws come from a seeded generator: policies with as many machines meet the same times, and
those of `stragglers.simulate`, over as many steps. Network and update take no time here.
"""

import dataclasses

import numpy as np

from largebatch.errors import ConfigError
from largebatch.planning.arrival_models import Workers
from largebatch.planning.stragglers import Policy

Array = np.ndarray
_ROUNDING = 1 + 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Barrier:
    """Updates at which the server waits for some workers of one step."""

    seconds: Array
    """float64 (steps,): how long each step takes."""
    done: Array
    """int64 (steps, machines): the microbatches of each worker that are counted."""

    @property
    def ends(self) -> Array:
        """float64 (steps,): when each update is made."""
        return np.cumsum(self.seconds)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrivals:
    """Updates that are made whenever a worker's gradient arrives; (updates,) each."""

    ends: Array
    """float64, seconds, ascending."""
    worker: Array
    """int64: whose gradient it is."""
    part: Array
    """int64: which consecutive part of the data it is of, in the order in which they were begun."""
    staleness: Array
    """int64: updates by others since this worker read the parameters (τ)."""


def draws(workers: Workers, machines: int, steps: int, seed: int) -> Array:
    """Seconds that each machine takes for each of its steps, float64 (steps, machines)."""
    return workers.draw(np.random.default_rng(seed), (steps, machines))


def barrier(times: Array, policy: Policy, microbatches: int) -> Barrier:
    """What a policy counts of each step.

    Args:
      times: seconds (steps, machines).
      policy: when a step goes on; with a deadline its own number of microbatches must be this one.
      microbatches: k of a worker's step, which take it equally long.

    Raises:
      ConfigError: a step counts nothing, or the numbers of microbatches differ.
    """
    _, machines = times.shape
    if policy.deadline < np.inf:
        if policy.microbatches != microbatches:
            raise ConfigError(
                f"the policy counts {policy.microbatches} microbatches of a worker's "
                f"{microbatches}; make them equal"
            )
        reached = np.floor(policy.deadline * microbatches / times * _ROUNDING)
        done = np.minimum(reached, microbatches).astype(np.int64)
        empty = np.flatnonzero(done.sum(1) == 0)
        if empty.size:
            raise ConfigError(
                f"step {empty[0] + 1}: no worker has finished a microbatch after "
                f"{policy.deadline:g} s; give a later deadline or more microbatches"
            )
        return Barrier(np.minimum(times.max(1), policy.deadline), done)
    wanted = machines - policy.ignored
    if wanted < 1:
        raise ConfigError(f"{policy.ignored} of {machines} workers cannot be ignored; leave one")
    order = np.argsort(times, axis=1, kind="stable")
    done = np.zeros(times.shape, np.int64)
    np.put_along_axis(done, order[:, :wanted], microbatches, axis=1)
    last = np.take_along_axis(times, order[:, wanted - 1 : wanted], axis=1)[:, 0]
    return Barrier(last, done)


def asynchronous(workers: Workers, machines: int, updates: int, seed: int) -> Arrivals:
    """The first so many arrivals where no worker waits for another.

    A worker reads the parameters, computes, and its gradient is applied on arrival; it reads those
    that result. Ties go to the lower number.
    """
    generator = np.random.default_rng(seed)
    rounds = -(-updates // machines) + 8
    times = workers.draw(generator, (rounds, machines))
    # Rows are added until the workers that came least far are beyond the last update.
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
