"""One training step dispatched on the compiled programs, and what must be waited for before it."""

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.optim import Rates
from largebatch.parallel import from_local
from largebatch.parallel.transfer import IN_FLIGHT, OnDevices
from largebatch.training.stage import Stage
from largebatch.training.state import Metrics, TrainState
from largebatch.training.steps import Steps


def run_step(
    stage: Stage,
    state: TrainState,
    feed: Iterator[OnDevices],
    rates: Rates,
    watchdog: Watchdog = IDLE,
    note: Callable[[float], None] | None = None,
) -> tuple[TrainState, Metrics]:
    """Dispatch a step on the next k microbatches; return before the last of them is computed.

    At most `IN_FLIGHT` microbatches are in flight, so that their images fit the devices; one, if
    times are measured or there is a deadline.

    With ``batch.deadline_s`` a process that misses the deadline leaves out microbatches
    (synchronous SGD drops stragglers: Chen et al. 2016, arXiv 1604.00981; here it keeps what they
    have computed). It still reads them, since the next microbatches have their own sample
    positions.

    Args:
      stage: compiled.
      state: before the step; its buffers are donated.
      feed: microbatches, at the first one of the step.
      rates: learning rate and the other rates of the step.
      watchdog: polled between microbatches.
      note: receives the seconds that this process computes before it needs the network. The step
        then starts only when the previous one has ended.

    Returns:
      State and metrics after the step.

    Raises:
      Interrupted: the run must stop; the state is unchanged.
    """
    steps, count, batch = stage.steps, stage.plan.microbatches, stage.plan.config.batch
    carry = stage.empty_carry() if count > 1 else None
    if note or batch.deadline_s:
        # The previous step ends when all processes are done; that wait must not count.
        jax.block_until_ready(state.params)
    began, waited, left_out = time.perf_counter(), 0.0, 0
    limit = 1 if note or batch.deadline_s else IN_FLIGHT
    in_flight: collections.deque[jax.Array] = collections.deque()
    if count > 1:
        # The last two microbatches of the step before may still be in flight, and end with it.
        in_flight.extend(2 * jax.tree.leaves(state.params)[:1])
    for left in reversed(range(count)):
        # Only two of them when the last one of a step starts, so that one of the next may follow.
        while len(in_flight) >= max(1, limit - (left == 0)):
            jax.block_until_ready(in_flight.popleft())
        since = time.perf_counter()
        images, labels, *_ = next(feed)
        waited += time.perf_counter() - since
        watchdog.alive()
        watchdog.poll()
        if not left:
            break
        is_late = batch.deadline_s and time.perf_counter() > began + batch.deadline_s
        if is_late and left_out < count // 2:
            left_out += 1
            continue
        carry, done = stage.accumulate(state.params, state.stats, carry, images, labels)
        in_flight.append(done)
    if note and steps.computes_alone:
        note(time.perf_counter() - began - waited)
    elif note:
        note(seconds(stage.probe, state.params, state.stats, images, labels))
    row = [watchdog.requested is not None, left_out]
    flags = control_flags(steps, row) if steps.has_control_flags else None
    numbers = np.asarray(rates, steps.dtype)
    return stage.finish(state, carry, images, labels, numbers, flags)


def control_flags(steps: Steps, row: list[float]) -> jax.Array:
    """Return this process's row of control flags, once for each of its devices."""
    return from_local(steps.mesh, np.tile(np.asarray(row, steps.dtype), (steps.own_devices, 1)))


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds that a compiled function takes on idle devices of this process."""
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start
