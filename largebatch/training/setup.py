"""Set up a run: open its data, resolve its plan, choose microbatches and set up its programs.

`open_run` does what needs no compiler, `OpenedRun.build` does the rest. The result is a `Run` of
one or more stages, each with its data and its programs.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import Config, Facts, Plan, StagePlan, resolve, stages_of
from largebatch.data.open import augment_of, facts_of, open_source, open_validation_sets
from largebatch.errors import UserError
from largebatch.parallel import compiler, processes
from largebatch.parallel.transfer import OnDevices, on_devices
from largebatch.tracking import Console
from largebatch.training.microbatch import StageBuilder, largest_microbatch
from largebatch.training.programs import Programs
from largebatch.training.state import Averages, TrainState

if TYPE_CHECKING:  # few runs begin with weights
    from largebatch.weights import Weights

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StageRun:
    """A stage that is ready to start: its data and its programs."""

    train_source: data.Source
    validation_source: data.Source
    programs: Programs
    unreadable: Mapping[str, data.Unreadable] = dataclasses.field(default_factory=dict)
    """By split, the examples that could not be decoded; the same objects for all stages. Without
    one, the first such example ends the run."""
    further_sets: Mapping[str, data.Source] = dataclasses.field(default_factory=dict)
    """The further validation sets (``data.validation_sets``) by name."""

    @property
    def plan(self) -> StagePlan:
        """The plan of the stage."""
        return self.programs.steps.plan

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.programs.steps.mesh

    def placed(self, state: TrainState) -> TrainState:
        """Return a state with the shardings that this stage's programs expect."""
        return jax.device_put(state, parallel.placed(self.mesh, self.programs.steps.specs))

    @functools.cached_property
    def order(self) -> data.Order:
        """The order of the examples by sample position."""
        return data.Order(
            self.plan.config.run.seed,
            len(self.train_source),
            shuffle=self.plan.config.data.shuffle,
            epoch_samples=self.plan.epoch_samples,
        )

    @functools.cached_property
    def validation_sets(self) -> Mapping[str, data.Source]:
        """All validation sets by name; the first one, ``validation``, is the main one."""
        return {"validation": self.validation_source, **self.further_sets}

    @functools.cached_property
    def views_of_sets(self) -> Mapping[str, tuple[data.View, ...]]:
        """The examples of each validation set by the shape at which they are seen."""
        options = self.plan.config.data
        return {
            name: data.rectangular_views(source, self._reading, options.evaluation_size)
            if options.rectangular
            else data.square_views(source, options.evaluation_size)
            for name, source in self.validation_sets.items()
        }

    @property
    def validation_views(self) -> tuple[data.View, ...]:
        """Those of the main validation set."""
        return self.views_of_sets["validation"]

    @property
    def evaluation_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heights and widths of the images of all evaluations."""
        views = self.views_of_sets.values()
        return tuple(dict.fromkeys(view.shape for each in views for view in each))

    def local_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """Yield this process's rows of the microbatches from position ``start`` to ``stop``."""
        options = self.plan.config.data
        return data.train_microbatches(
            self.train_source,
            self.order,
            augment_of(self.plan.config, self.train_source.mean),
            start=start,
            stop=stop,
            microbatch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            reading=self._reading,
            crops=options.crops,
            centre=options.train_crop == "centre",
            unreadable=self.unreadable.get("train"),
        )

    def train_microbatches(
        self, start: int, stop: int, patience: float | None = None
    ) -> Generator[OnDevices | None]:
        """Yield the microbatches from sample position ``start`` to ``stop``, on the devices.

        With ``patience``, also yield None whenever that many seconds passed without one.
        """
        return on_devices(self.mesh, self.local_microbatches(start, stop), patience)

    def validation_batches(
        self, patience: float | None = None, name: str = "validation"
    ) -> Generator[OnDevices | None]:
        """Yield every batch of a validation set, on the devices.

        Args:
          patience: as in `train_microbatches`.
          name: of the set, in `validation_sets`.
        """
        return on_devices(
            self.mesh,
            data.evaluation_batches(
                self.validation_sets[name],
                batch=self.plan.microbatch_samples,
                rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
                reading=self._reading,
                crops=self.plan.config.data.crops,
                views=self.views_of_sets[name],
                unreadable=self.unreadable.get(name),
            ),
            patience,
        )

    @property
    def _reading(self) -> data.Reading:
        return reading_of(self.plan.config)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to start."""

    plan: Plan
    stages: tuple[StageRun, ...]
    console: Console

    @property
    def first_stage(self) -> StageRun:
        """The first stage; most runs have only one."""
        return self.stages[0]

    def stage_at(self, step: int) -> StageRun:
        """Return the stage of step number ``step``, from 1."""
        return self.stages[self.plan.stages.index(self.plan.stage_at(step))]

    @property
    def checkpoint_shapes(self) -> PyTree:
        """Shapes and dtypes of the state as checkpoints hold it, the same for all stages."""
        return self.first_stage.programs.checkpoint_shapes

    @property
    def unreadable(self) -> Mapping[str, data.Unreadable]:
        """The examples that could not be decoded, by split."""
        return self.first_stage.unreadable

    @property
    def compile_s(self) -> float:
        """Seconds of compilation of all stages."""
        return sum(stage.programs.compile_s for stage in self.stages)

    def warn_of_unreadable(self) -> None:
        """Warn of every example that cannot be decoded, without a list on disk."""
        for split in self.unreadable.values():
            split.connect(lambda n, reason: self.console.warn(f"{n} cannot be decoded: {reason}"))

    def prepare(self) -> None:
        """Compile all that training will call, so that no step waits for a compilation."""
        for stage in self.stages:
            stage.programs.prepare(stage.evaluation_shapes)


def reading_of(config: Config) -> data.Reading:
    """Return the reader settings: threads, processes and read-ahead."""
    options = config.data
    threads, memory = options.threads or data.cores(), options.memory_mib * 2**20
    readers = threads * max(1, options.processes)
    return data.Reading(
        threads=threads,
        processes=options.processes,
        memory_bytes=memory,
        piece_bytes=min(data.PIECE, memory // (2 * readers)),  # two pieces for each reader
    )


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run whose data is open and whose plan is resolved; nothing has been compiled."""

    config: Config
    console: Console
    devices: Sequence[jax.Device]
    splits: Sequence[tuple[data.Source, data.Source]]
    """Training and validation data of each stage."""
    further_sets: Sequence[Mapping[str, data.Source]]
    """Further validation sets of each stage, by name."""
    facts: Facts
    plan: Plan
    """With the largest possible microbatch if ``batch.microbatch=auto``."""

    @functools.cached_property
    def checkpoint_shapes(self) -> PyTree:
        """Shapes and dtypes of the state as checkpoints hold it."""
        builder = self._builder(0, (), {})
        return builder.programs(builder.candidates[-1]).checkpoint_shapes

    def build(self, *, evaluated_step: int | None = None) -> Run:
        """Choose the microbatch of each stage, which may compile, and set up its programs.

        Args:
          evaluated_step: a step whose state is evaluated, without training; then only the
            evaluation of its stage is compiled.
        """
        options = compiler.program_options(
            compiler.platform_of(self.devices[0]),
            self.config.comm.allreduce,
            self.config.comm.xla_options,
            self.console.warn,
            deterministic=self.config.run.deterministic,
        )
        stages = self.plan.stages
        trains = evaluated_step is None
        needed = stages if trains else (self.plan.stage_at(evaluated_step),)
        what = "train steps" if trains else "evaluation"
        chosen: list[int | None] = []
        made: list[Programs] = []
        for index in range(len(self.splits)):
            builder = self._builder(index, tuple(chosen), options)
            microbatch = None
            if len(builder.candidates) > 1 and stages[index] in needed:
                stage = f" of stage {index + 1} of {len(stages)}" * (len(stages) > 1)
                with self.console.compiling(
                    f"{what}{stage}, to find the largest microbatch that fits"
                ):
                    microbatch = largest_microbatch(builder, for_evaluation=not trains)
            chosen.append(microbatch)
            made.append(builder.programs(microbatch))
            made[index].compile_s = builder.compile_s  # the search is part of it
        unreadable = {  # all stages read one source, so an id is the same example in each
            name: data.Unreadable(name, len(source), self.config.data.max_unreadable)
            for name, source in (
                *zip(("train", "validation"), self.splits[0], strict=True),
                *self.further_sets[0].items(),
            )
        }
        runs = (
            StageRun(*split, programs, unreadable, further)
            for split, programs, further in zip(self.splits, made, self.further_sets, strict=True)
        )
        plan = dataclasses.replace(self.plan, stages=tuple(p.steps.plan for p in made))
        return Run(plan, tuple(runs), self.console)

    def _builder(
        self, index: int, chosen: tuple[int | None, ...], options: Mapping[str, str]
    ) -> StageBuilder:
        train, _ = self.splits[index]
        return StageBuilder(
            self.config, self.facts, self.devices, train, options, chosen, len(self.splits)
        )


def open_run(
    config: Config, console: Console, devices: Sequence[jax.Device] | None = None
) -> OpenedRun:
    """Open the data of each stage and resolve the plan, which finds most mistakes.

    Args:
      config: configuration of the run.
      console: prints progress and warnings.
      devices: None for all devices of all processes.

    Raises:
      UserError: the data cannot be opened, or options contradict each other.
    """
    devices = jax.devices() if devices is None else devices
    opener = functools.cache(data.open_source)  # most stages share one source
    stages = stages_of(config)
    splits = [
        tuple(open_source(stage.config, split, opener) for split in ("train", "validation"))
        for stage in stages
    ]
    further = [
        open_validation_sets(stage.config, validation, opener)
        for stage, (_, validation) in zip(stages, splits, strict=True)
    ]
    facts = facts_of(
        *splits[0],
        len(devices),
        jax.process_count(),
        crops_on_device=config.data.crops == "device",
    )
    return OpenedRun(config, console, devices, splits, further, facts, resolve(config, facts))


def build(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Run:
    """Open a run and set up its programs for training; see `open_run` and `OpenedRun.build`."""
    return open_run(config, console, devices).build()


def initial_state(run: Run, weights_read: "Weights | None" = None) -> TrainState:
    """Return fresh parameters, or those of ``model.init_from``, for the first stage.

    Every process reads the file itself; a digest checks that all have read the same weights.

    Args:
      run: ready to train.
      weights_read: the weights of ``model.init_from``, if they have been read already.

    Raises:
      UserError: the weights cannot be read, or are of another network.
    """
    options, first = run.plan.config, run.first_stage
    state = first.programs.init(np.int32(options.run.seed))
    if not options.model.init_from:
        return state
    from largebatch import weights

    fresh, source = jax.device_get((state.params, state.stats)), first.train_source

    def begun() -> tuple[weights.Weights, PyTree, PyTree, str]:
        read = weights_read or weights.read(Path(options.model.init_from))
        return read, *weights.initial(read, *fresh, classes=source.classes)

    read, params, stats, text = processes.each_process_does(begun)
    if not processes.agree(_digest((params, stats))):
        raise UserError(
            f"model.init_from={options.model.init_from}: processes have read different weights; "
            "use a file that all processes share"
        )
    run.console.note(f"starts with {text}")
    for option, theirs, ours in (
        ("norm.epsilon", read.model.epsilon, options.norm.epsilon),
        ("the data's mean", read.mean, tuple(source.mean)),
        ("the data's deviation", read.std, tuple(source.std)),
    ):
        if not np.allclose(theirs, ours, rtol=1e-3):
            run.console.warn(f"{option} is {ours}, the weights were trained with {theirs}")
    ema = state.ema and Averages(params, stats)
    return first.placed(state._replace(params=params, stats=stats, ema=ema))


def _digest(tree: PyTree) -> int:
    """Return a digest of all bits as a number below 2⁵⁶."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return int.from_bytes(found.digest()[:7], "big")
