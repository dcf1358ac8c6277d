"""The step functions compiled ahead of time, and one training step dispatched on them."""

import collections
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch import parallel
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.optim import Rates
from largebatch.parallel import from_local
from largebatch.parallel.transfer import IN_FLIGHT, Augmented, OnDevices
from largebatch.training.memory import program_bytes
from largebatch.training.state import Metrics, TrainState
from largebatch.training.steps import Steps
from largebatch.training.stragglers import HostTimes, probe, seconds

PyTree = Any


class Programs:
    """Executables of ``steps``, each compiled on first use (and then kept)."""

    def __init__(self, steps: Steps, options: Mapping[str, str] | None = None) -> None:
        """Compile nothing yet.

        Args:
          steps: the functions to compile.
          options: XLA options, name to value, for the programs that compute on images.
        """
        self.steps = steps
        self._options = dict(options or {})
        self.compile_s = 0.0
        self.bytes: dict[str, int] = {}
        """Peak bytes on a device, by program."""
        self._evaluations: dict[tuple[int, int], jax.stages.Compiled] = {}

    @functools.cached_property
    def state(self) -> PyTree:
        """Shapes and shardings of the state."""
        found = jax.eval_shape(self.steps.init, 0)
        placed = jax.tree.broadcast(parallel.placed(self.steps.mesh, self.steps.specs), found)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            found,
            placed,
        )

    @functools.cached_property
    def checkpoint_shapes(self) -> PyTree:
        """Shapes and shardings of the state as checkpoints hold it."""
        sharding = parallel.replicated(self.steps.mesh)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(self.steps.to_checkpoint, self.state),
        )

    @functools.cached_property
    def init(self) -> jax.stages.Compiled:
        """Seed → state."""
        seed = jax.ShapeDtypeStruct((), jnp.int32, sharding=parallel.replicated(self.steps.mesh))
        return self._compile("initialisation", self.steps.init, seed, plain=True)

    @functools.cached_property
    def empty_carry(self) -> jax.stages.Compiled:
        """() → carry."""
        return self._compile("empty carry", self.steps.empty_carry, plain=True)

    @functools.cached_property
    def accumulate(self) -> jax.stages.Compiled:
        """One microbatch's gradients, added to the carry; and an array to wait for."""
        arguments = (self.state.params, self.state.stats, self._carry, *self._images)
        return self._compile("accumulate", self.steps.accumulate, *arguments)

    @functools.cached_property
    def finish(self) -> jax.stages.Compiled:
        """The last microbatch, all-reduce and update."""
        carry = self._carry if self.steps.plan.microbatches > 1 else None
        return self._compile(
            "train step",
            self.steps.finish,
            self.state,
            carry,
            *self._images,
            self._rates,
            self._control_flags(2) if self.steps.has_control_flags else None,
        )

    @functools.cached_property
    def layer_report(self) -> jax.stages.Compiled:
        """The optimizer's report and the statistics as one array."""
        state = self.state
        return self._compile(
            "layer report",
            self.steps.layer_report,
            state.optimizer.report,
            state.stats,
            plain=True,
        )

    @property
    def of_step(self) -> tuple[jax.stages.Compiled, ...]:
        """The programs that a step runs."""
        several = self.steps.plan.microbatches > 1
        return (self.accumulate, self.finish) if several else (self.finish,)

    @functools.cached_property
    def probe(self) -> jax.stages.Compiled:
        """A microbatch without collectives, which times this host alone."""
        state = self.state
        return self._compile("probe", probe(self.steps), state.params, state.stats, *self._images)

    def evaluate(self, shape: tuple[int, int]) -> jax.stages.Compiled:
        """Return the program that evaluates a batch of images at this height and width."""
        if shape not in self._evaluations:
            images, labels = self._batch(shape)
            weights = jax.ShapeDtypeStruct(labels.shape, jnp.float32, sharding=labels.sharding)
            state = self.state.params, self.state.stats
            self._evaluations[shape] = self._compile(
                f"evaluation at {shape[0]}×{shape[1]}",
                self.steps.evaluate(shape),
                *state,
                images,
                labels,
                weights,
                self._control_flags(1) if self.steps.plan.facts.processes > 1 else None,
            )
        return self._evaluations[shape]

    @functools.cached_property
    def measure_statistics(self) -> jax.stages.Compiled:
        """Batch statistics of one microbatch."""
        return self._compile(
            "statistics",
            self.steps.measure_statistics,
            self.state.params,
            self.state.stats,
            self._images[0],
        )

    def prepare(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Compile all that training will call, so that no step waits for a compilation.

        Args:
          shapes: height and width of the images of evaluation batches.
        """
        if self.steps.plan.microbatches > 1:
            _ = self.empty_carry, self.accumulate
        _ = self.finish
        plan = self.steps.plan
        if 0 < plan.layers_every_steps <= plan.last_step:
            _ = self.layer_report
        if plan.facts.processes > 1 and plan.hosts_every_steps and not self.steps.computes_alone:
            _ = self.probe
        for shape in shapes:
            self.evaluate(shape)
        if self.steps.plan.norm_statistics == "precise":
            _ = self.measure_statistics

    @functools.cached_property
    def _carry(self) -> PyTree:
        sharding = parallel.split(self.steps.mesh)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(self.steps.empty_carry),
        )

    def _control_flags(self, columns: int) -> jax.ShapeDtypeStruct:
        """Return the shape of the control flags, a row for each device."""
        return jax.ShapeDtypeStruct(
            (self.steps.mesh.size, columns),
            self.steps.dtype,
            sharding=parallel.split(self.steps.mesh),
        )

    @property
    def _rates(self) -> jax.ShapeDtypeStruct:
        sharding = parallel.replicated(self.steps.mesh)
        return jax.ShapeDtypeStruct((len(Rates._fields),), self.steps.dtype, sharding=sharding)

    @property
    def _images(self) -> tuple[PyTree, jax.ShapeDtypeStruct]:
        """Shapes and shardings of a microbatch of training."""
        images: PyTree
        images, labels = self._batch(self.steps.plan.facts.image_shape[:2])
        options = self.steps.plan.config.augment

        def struct(columns: int, dtype: jax.typing.DTypeLike) -> Any:
            return jax.ShapeDtypeStruct((*labels.shape, columns), dtype, sharding=labels.sharding)

        if options.erase or options.mixes:
            images = Augmented(
                images,
                struct(4, jnp.int32) if options.erase else None,
                struct(6, jnp.float32) if options.mixes else None,
            )
        return images, labels

    def _batch(self, shape: tuple[int, int]) -> tuple[PyTree, jax.ShapeDtypeStruct]:
        """Return shapes and shardings of images at a height and width, and of their labels."""
        sharding = parallel.split(self.steps.mesh)
        rows, facts = self.steps.plan.microbatch_samples, self.steps.plan.facts

        def struct(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=sharding)

        images = struct((*shape, facts.image_shape[2]), jnp.uint8)
        if facts.stored_size:
            stored = (facts.stored_size, facts.stored_size, facts.image_shape[2])
            images = struct(stored, jnp.uint8), struct((5,), jnp.int32)
        return images, struct((), jnp.int32)

    def _compile(
        self, name: str, function: Any, *arguments: Any, plain: bool = False
    ) -> jax.stages.Compiled:
        start = time.perf_counter()
        options = None if plain else self._options or None
        compiled = function.lower(*arguments).compile(compiler_options=options)
        self.compile_s += time.perf_counter() - start
        self.bytes[name] = program_bytes(compiled)
        return compiled


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
