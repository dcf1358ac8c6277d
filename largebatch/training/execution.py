"""One step of the training, dispatched on the next microbatches of the feed."""

import time
from collections.abc import Iterator

import jax
import numpy as np

from largebatch.fault_tolerance import IDLE, Guard
from largebatch.optim import Rates
from largebatch.parallel import from_local
from largebatch.parallel.transfer import OnDevices
from largebatch.training.programs import Programs
from largebatch.training.state import Metrics, TrainState
from largebatch.training.steps import Steps
from largebatch.training.stragglers import HostTimes, seconds


def run_step(
    programs: Programs,
    state: TrainState,
    feed: Iterator[OnDevices],
    rates: Rates,
    guard: Guard = IDLE,
    times: HostTimes | None = None,
) -> tuple[TrainState, Metrics]:
    """Dispatch a step on the next k microbatches; returns before the last of them is computed.

    With ``batch.deadline_s`` a process that is late leaves out microbatches (as synchronous SGD
    drops stragglers: Chen et al. 2016, arXiv 1604.00981, but keeping what they have computed).
    They are read all the same, since what follows has its own sample positions.

    Args:
      programs: compiled.
      state: before the step, which takes it.
      feed: at the step's first microbatch.
      rates: of the step.
      guard: polled between microbatches.
      times: is told how long this process computes until the network is needed. The step then
        begins when the one before has ended.

    Returns:
      State and metrics after the step.

    Raises:
      Interrupted: the run is to stop; the state is as it was.
    """
    steps, plan = programs.steps, programs.steps.plan
    carry = programs.empty_carry() if plan.microbatches > 1 else None
    lateness = _Lateness(steps, state)
    if times is not None:
        jax.block_until_ready(state.params)
    began, waited = time.perf_counter(), 0.0
    for left in reversed(range(plan.microbatches)):
        since = time.perf_counter()
        images, labels, *_ = next(feed)
        waited += time.perf_counter() - since
        # One microbatch at a time is computed, or queued images would fill the device.
        jax.block_until_ready(carry)
        guard.alive()
        guard.poll()
        if left and not lateness.leaves_out():
            carry = programs.accumulate(state.params, state.stats, carry, images, labels)
    if times is not None and steps.computes_alone:
        times.add_compute(time.perf_counter() - began - waited)
    elif times is not None:
        times.add_compute(seconds(programs.probe, state.params, state.stats, images, labels))
    rates = Rates(*(np.asarray(rate, steps.dtype) for rate in rates))
    row = [guard.requested is not None, lateness.left_out]
    told = tell(steps, row) if steps.tells else None
    return programs.finish(state, carry, images, labels, rates, told)


def tell(steps: Steps, row: list[float]) -> jax.Array:
    """What this process tells the others: the same row for each of its devices."""
    return from_local(steps.mesh, np.tile(np.asarray(row, steps.dtype), (steps.own_devices, 1)))


class _Lateness:
    """How late this process is in a step, against its deadline."""

    def __init__(self, steps: Steps, state: TrainState) -> None:
        batch = steps.plan.config.batch
        self.left_out = 0
        self._most = int(batch.deadline_share * steps.plan.microbatches)
        self._at = float("inf")
        if batch.deadline_s:
            # The step before ends when all are done; waiting for them is not being late.
            jax.block_until_ready(state.params)
            self._at = time.perf_counter() + batch.deadline_s

    def leaves_out(self) -> bool:
        """Whether the next microbatch is left out; counted."""
        late = self.left_out < self._most and time.perf_counter() > self._at
        self.left_out += late
        return late
