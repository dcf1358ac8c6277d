"""A stage on its devices: step functions compiled ahead of time, and the data that they read."""

import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config.plan import StagePlan
from largebatch.data.open import augment_of
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.optim import Rates
from largebatch.parallel.transfer import Augmented, OnDevices, on_devices
from largebatch.training.layer_rows import Rows, layer_reader
from largebatch.training.state import TrainState
from largebatch.training.steps import Steps

PyTree = Any


class Splits(NamedTuple):
    """The data of a stage."""

    train: data.Dataset
    validation: data.Dataset
    further: Mapping[str, data.Dataset] = {}
    """Further validation sets (``data.validation_sets``) by name."""


class Stage:
    """The step functions of a stage, each compiled on first use, and the stage's data."""

    def __init__(
        self,
        steps: Steps,
        options: Mapping[str, str] | None = None,
        splits: Splits | None = None,
        unreadable: Mapping[str, data.Unreadable] | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
          steps: the functions to compile.
          options: XLA options, name to value, for the programs that compute on images.
          splits: the data; None where the programs are only compiled, or are given batches.
          unreadable: by split, the examples that could not be decoded; the same objects for all
            stages. Without one, the first such example ends the run.
        """
        self.steps, self.splits = steps, splits
        self.unreadable = unreadable or {}
        self._options = dict(options or {})
        self.compile_s = 0.0
        """Seconds of compilation."""
        self.bytes: dict[str, int] = {}
        """Peak bytes on a device, by program."""
        self._evaluations: dict[tuple[int, int], jax.stages.Compiled] = {}

    @property
    def plan(self) -> StagePlan:
        """The plan of the stage."""
        return self.steps.plan

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.steps.mesh

    # ---- State

    @functools.cached_property
    def state(self) -> TrainState:
        """Shapes and shardings of the state."""
        found = jax.eval_shape(self.steps.init, 0)
        placed = jax.tree.broadcast(parallel.placed(self.mesh, self.steps.specs), found)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            found,
            placed,
        )

    @functools.cached_property
    def checkpoint_shapes(self) -> TrainState:
        """Shapes and shardings of the state as checkpoints hold it."""
        stored = jax.eval_shape(self.steps.to_checkpoint, self.state)
        return self._with_sharding(stored, parallel.replicated(self.mesh))

    def placed(self, state: TrainState) -> TrainState:
        """Return a state with the shardings that this stage's programs expect."""
        return jax.device_put(state, parallel.placed(self.mesh, self.steps.specs))

    # ---- Programs

    @functools.cached_property
    def init(self) -> jax.stages.Compiled:
        """Seed → state."""
        seed = jax.ShapeDtypeStruct((), jnp.int32, sharding=parallel.replicated(self.mesh))
        return self._compile("initialisation", self.steps.init, seed, plain=True)

    @functools.cached_property
    def empty_carry(self) -> jax.stages.Compiled:
        """() → carry."""
        return self._compile("empty carry", self.steps.empty_carry, plain=True)

    @functools.cached_property
    def accumulate(self) -> jax.stages.Compiled:
        """One microbatch's gradients, added to the carry; and an array to wait for."""
        arguments = (self.state.params, self.state.stats, self.carry, *self.images)
        return self._compile("accumulate", self.steps.accumulate, *arguments)

    @functools.cached_property
    def finish(self) -> jax.stages.Compiled:
        """The last microbatch, all-reduce and update."""
        return self._compile("train step", self.steps.finish, *self.finish_arguments)

    @functools.cached_property
    def probe(self) -> jax.stages.Compiled:
        """A microbatch without collectives, which times this host alone."""
        state = self.state
        return self._compile("probe", self.steps.probe, state.params, state.stats, *self.images)

    @functools.cached_property
    def layer_report(self) -> jax.stages.Compiled:
        """The optimizer's report and the statistics as one array."""
        arguments = self.state.optimizer.report, self.state.stats
        return self._compile("layer report", self.steps.layer_report, *arguments, plain=True)

    @functools.cached_property
    def measure_statistics(self) -> jax.stages.Compiled:
        """Batch statistics of one microbatch."""
        arguments = self.state.params, self.state.stats, self.images[0]
        return self._compile("statistics", self.steps.measure_statistics, *arguments)

    def evaluate(self, shape: tuple[int, int]) -> jax.stages.Compiled:
        """Return the program that evaluates a batch of images at this height and width."""
        if shape not in self._evaluations:
            images, labels = self._batch(shape)
            weights = jax.ShapeDtypeStruct(labels.shape, jnp.float32, sharding=labels.sharding)
            self._evaluations[shape] = self._compile(
                f"evaluation at {shape[0]}×{shape[1]}",
                self.steps.evaluate,
                self.state.params,
                self.state.stats,
                images,
                labels,
                weights,
                self._control_flags(1) if self.plan.facts.processes > 1 else None,
            )
        return self._evaluations[shape]

    def prepare(self, shapes: Sequence[tuple[int, int]] | None = None) -> None:
        """Compile all that training will call, so that no step waits for a compilation.

        Args:
          shapes: height and width of the images of evaluation batches; None: of the data's.
        """
        plan = self.plan
        if plan.microbatches > 1:
            _ = self.empty_carry, self.accumulate
        _ = self.finish
        batch = plan.samples_per_step
        if 2 * plan.layers_every <= (2 * (plan.last_step - plan.counted_from) + 1) * batch:
            _ = self.layer_report
        if plan.facts.processes > 1 and plan.hosts_every and not self.steps.computes_alone:
            _ = self.probe
        for shape in self.evaluation_shapes if shapes is None else shapes:
            self.evaluate(shape)
        if plan.norm_statistics == "precise":
            _ = self.measure_statistics

    @functools.cached_property
    def read_layers(self) -> Callable[[np.ndarray], Rows]:
        """Reads the result of `layer_report`; see `layer_rows.layer_reader`."""
        params, stats = self.steps.model.shapes()
        return layer_reader(self.state.optimizer.report, self.steps.trained(params), stats)

    # ---- Shapes of arguments

    @functools.cached_property
    def carry(self) -> PyTree:
        """Shapes and shardings of the carry."""
        return self._with_sharding(
            jax.eval_shape(self.steps.empty_carry), parallel.split(self.mesh)
        )

    @property
    def images(self) -> tuple[PyTree, jax.ShapeDtypeStruct]:
        """Shapes and shardings of a microbatch of training: images, labels."""
        images: PyTree
        images, labels = self._batch(self.plan.facts.image_shape[:2])
        options = self.plan.config.augment

        def struct(columns: int, dtype: jax.typing.DTypeLike) -> Any:
            return jax.ShapeDtypeStruct((*labels.shape, columns), dtype, sharding=labels.sharding)

        if options.erase or options.mixes:
            images = Augmented(
                images,
                struct(4, jnp.int32) if options.erase else None,
                struct(6, jnp.float32) if options.mixes else None,
            )
        return images, labels

    @property
    def finish_arguments(self) -> tuple[PyTree, ...]:
        """Shapes and shardings of the arguments of `finish`."""
        replicated = parallel.replicated(self.mesh)
        return (
            self.state,
            self.carry if self.plan.microbatches > 1 else None,
            *self.images,
            jax.ShapeDtypeStruct((len(Rates._fields),), self.steps.dtype, sharding=replicated),
            self._control_flags(2) if self.steps.has_control_flags else None,
        )

    def _control_flags(self, columns: int) -> jax.ShapeDtypeStruct:
        """Return the shape of the control flags, a row for each device."""
        shape, sharding = (self.mesh.size, columns), parallel.split(self.mesh)
        return jax.ShapeDtypeStruct(shape, self.steps.dtype, sharding=sharding)

    def _batch(self, shape: tuple[int, int]) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Return shapes and shardings of images at a height and width, and of their labels."""
        sharding = parallel.split(self.mesh)
        rows = self.plan.microbatch_samples

        def struct(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=sharding)

        channels = self.plan.facts.image_shape[2]
        return struct((*shape, channels), jnp.uint8), struct((), jnp.int32)

    @staticmethod
    def _with_sharding(shapes: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
        )

    def _compile(
        self, name: str, function: Any, *arguments: Any, plain: bool = False
    ) -> jax.stages.Compiled:
        start = time.perf_counter()
        options = None if plain else self._options or None
        compiled = function.lower(*arguments).compile(compiler_options=options)
        self.compile_s += time.perf_counter() - start
        self.bytes[name] = program_bytes(compiled)
        return compiled

    # ---- Data

    @functools.cached_property
    def order(self) -> data.Order:
        """The order of the examples by sample position."""
        return data.Order(
            self.plan.config.run.seed,
            len(self.splits.train),
            shuffle=self.plan.config.data.shuffle,
            epoch_samples=self.plan.epoch_samples,
        )

    @functools.cached_property
    def validation_sets(self) -> Mapping[str, data.Dataset]:
        """All validation sets by name; the first one, ``validation``, is the main one."""
        return {"validation": self.splits.validation, **self.splits.further}

    @functools.cached_property
    def views_of_sets(self) -> Mapping[str, tuple[data.View, ...]]:
        """The examples of each validation set by the shape at which they are seen."""
        options = self.plan.config.data
        return {
            name: data.evaluation_views(
                source, self._reading, options.evaluation_size, rectangular=options.rectangular
            )
            for name, source in self.validation_sets.items()
        }

    @property
    def evaluation_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heights and widths of the images of all evaluations."""
        views = self.views_of_sets.values()
        return tuple(dict.fromkeys(view.shape for each in views for view in each))

    def local_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """Yield this process's rows of the microbatches from position ``start`` to ``stop``."""
        options, source = self.plan.config.data, self.splits.train
        return data.train_microbatches(
            source,
            self.order,
            augment_of(self.plan.config, source.mean),
            start=start,
            stop=stop,
            microbatch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            reading=self._reading,
            centre=options.train_crop == "centre",
            unreadable=self.unreadable.get("train"),
        )

    def train_microbatches(
        self,
        start: int,
        stop: int,
        watchdog: Watchdog = IDLE,
        waited: Callable[[float], None] = lambda seconds: None,
    ) -> Generator[OnDevices]:
        """Yield the microbatches from sample position ``start`` to ``stop``, on the devices.

        Args:
          start: first sample position.
          stop: sample position to stop before.
          watchdog: as in `transfer.on_devices`.
          waited: likewise.
        """
        return on_devices(self.mesh, self.local_microbatches(start, stop), watchdog, waited)

    def validation_batches(
        self, name: str = "validation", watchdog: Watchdog = IDLE
    ) -> Generator[OnDevices]:
        """Yield every batch of a validation set, on the devices.

        Args:
          name: of the set, in `validation_sets`.
          watchdog: as in `transfer.on_devices`.
        """
        return on_devices(
            self.mesh,
            data.evaluation_batches(
                self.validation_sets[name],
                batch=self.plan.microbatch_samples,
                rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
                reading=self._reading,
                views=self.views_of_sets[name],
                unreadable=self.unreadable.get(name),
            ),
            watchdog,
        )

    @property
    def _reading(self) -> data.Reading:
        """Threads and memory of reading."""
        return data.Reading.of(self.plan.config.data.threads)


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
    """Return the stage of step number ``step``, from 1."""
    return next((s for s in reversed(stages) if step > s.plan.first_step), stages[0])


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the peak bytes on a device while a program runs: arguments, results, temporaries."""
    analysis = compiled.memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.generated_code_size_in_bytes
    )
