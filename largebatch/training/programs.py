"""The step functions compiled ahead of time."""

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from largebatch import parallel
from largebatch.optim import Rates
from largebatch.parallel.transfer import Augmented
from largebatch.training.memory import program_bytes
from largebatch.training.steps import Steps
from largebatch.training.stragglers import probe

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
        batch = plan.samples_per_step
        if 2 * plan.layers_every <= (2 * (plan.last_step - plan.counted_from) + 1) * batch:
            _ = self.layer_report
        if plan.facts.processes > 1 and plan.hosts_every and not self.steps.computes_alone:
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
