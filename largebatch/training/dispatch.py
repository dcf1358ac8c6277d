"""One training step dispatched on the compiled programs, and what must be waited for before it."""

import collections
import time
from collections.abc import Iterator

import jax
import numpy as np

from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.optim import Rates
from largebatch.parallel import from_local
from largebatch.parallel.transfer import IN_FLIGHT, OnDevices
from largebatch.training.programs import Programs
from largebatch.training.state import Metrics, TrainState
from largebatch.training.steps import Steps
from largebatch.training.stragglers import HostTimes, seconds


def run_step(
    programs: Programs,
    state: TrainState,
    feed: Iterator[OnDevices],
    rates: Rates,
    watchdog: Watchdog = IDLE,
    times: HostTimes | None = None,
) -> tuple[TrainState, Metrics]:
    """Dispatch a step on the next k microbatches; return before the last of them is computed.

    At most `IN_FLIGHT` microbatches are in flight, so that their images fit the devices; one, if
    times are measured or there is a deadline.

    With ``batch.deadline_s`` a process that misses the deadline leaves out microbatches
    (synchronous SGD drops stragglers: Chen et al. 2016, arXiv 1604.00981; here it keeps what they
    have computed). It still reads them, since the next microbatches have their own sample
    positions.

    Args:
      programs: of the stage, compiled.
      state: before the step; its buffers are donated.
      feed: microbatches, at the first one of the step.
      rates: learning rate and the other rates of the step.
      watchdog: polled between microbatches.
      times: receives the seconds that this process computes before it needs the network. The step
        then starts only when the previous one has ended.

    Returns:
      State and metrics after the step.

    Raises:
      Interrupted: the run must stop; the state is unchanged.
    """
    steps, plan = programs.steps, programs.steps.plan
    carry = programs.empty_carry() if plan.microbatches > 1 else None
    deadline = _Deadline(steps, state)
    if times is not None:
        jax.block_until_ready(state.params)
    measured = times is not None or bool(plan.config.batch.deadline_s)
    limit = 1 if measured else IN_FLIGHT
    in_flight = _InFlight(state, limit) if plan.microbatches > 1 else None
    began, waited = time.perf_counter(), 0.0
    for left in reversed(range(plan.microbatches)):
        if in_flight is not None:
            in_flight.wait(is_last=not left)
        since = time.perf_counter()
        images, labels, *_ = next(feed)
        waited += time.perf_counter() - since
        watchdog.alive()
        watchdog.poll()
        if in_flight is not None and left and not deadline.leaves_out():
            carry, done = programs.accumulate(state.params, state.stats, carry, images, labels)
            in_flight.add(done)
    if times is not None and steps.computes_alone:
        times.add_compute(time.perf_counter() - began - waited)
    elif times is not None:
        times.add_compute(seconds(programs.probe, state.params, state.stats, images, labels))
    row = [watchdog.requested is not None, deadline.left_out]
    flags = control_flags(steps, row) if steps.has_control_flags else None
    numbers = np.asarray(rates, steps.dtype)
    return programs.finish(state, carry, images, labels, numbers, flags)


def control_flags(steps: Steps, row: list[float]) -> jax.Array:
    """Return this process's row of control flags, once for each of its devices."""
    return from_local(steps.mesh, np.tile(np.asarray(row, steps.dtype), (steps.own_devices, 1)))


class _InFlight:
    """The microbatches in flight, whose images fill the devices' memory: at most ``limit``."""

    def __init__(self, state: TrainState, limit: int) -> None:
        """Begin a step from a state.

        The last two microbatches of the step before may still be in flight, and end with it.
        """
        before = jax.tree.leaves(state.params)[0]
        self._limit, self._arrays = limit, collections.deque([before, before])

    def wait(self, *, is_last: bool) -> None:
        """Wait until a microbatch may be dispatched, or the last one of the step.

        That leaves only two, itself included, so that the first of the next step may follow.
        """
        most = max(1, self._limit - is_last)
        while len(self._arrays) >= most:
            jax.block_until_ready(self._arrays.popleft())

    def add(self, done: jax.Array) -> None:
        """Add a microbatch that has been dispatched; ``done`` is one of its results."""
        self._arrays.append(done)


class _Deadline:
    """The deadline of a step, and the microbatches that this process has left out for it."""

    def __init__(self, steps: Steps, state: TrainState) -> None:
        batch = steps.plan.config.batch
        self.left_out = 0
        self._most = int(batch.deadline_share * steps.plan.microbatches)
        self._at = float("inf")
        if batch.deadline_s:
            # The previous step ends when all processes are done; that wait must not count.
            jax.block_until_ready(state.params)
            self._at = time.perf_counter() + batch.deadline_s

    def leaves_out(self) -> bool:
        """Return whether to leave out the next microbatch, and count it."""
        is_late = self.left_out < self._most and time.perf_counter() > self._at
        self.left_out += is_late
        return is_late
