"""From a configuration and the devices at hand to everything a run is made of."""

import dataclasses
import functools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import Config, Facts, Plan, resolve, stages_of
from largebatch.data.open import facts_of, open_source
from largebatch.parallel import compiler
from largebatch.parallel.transfer import OnDevices, on_devices
from largebatch.tracking import Console
from largebatch.training.making import Maker, fitting
from largebatch.training.programs import Programs
from largebatch.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to start."""

    train_source: data.Source
    validation_source: data.Source
    programs: Programs
    console: Console
    later: tuple["Run", ...] = ()
    """The stages after this one, if this is the first."""
    unreadable: Mapping[str, data.Unreadable] = dataclasses.field(default_factory=dict)
    """By split, the examples that could not be decoded; the same objects for all stages. Without
    one, the first such example ends the run."""

    @property
    def stages(self) -> tuple["Run", ...]:
        """All stages, if this is the first; most runs have one."""
        return (self, *self.later)

    def stage_at(self, step: int) -> "Run":
        """The stage of step number ``step``, from 1."""
        return self.stages[self.plan.stages.index(self.plan.stage_at(step))]

    @property
    def compile_s(self) -> float:
        """Seconds of compiling, for all stages."""
        return sum(stage.programs.compile_s for stage in self.stages)

    def placed(self, state: TrainState) -> TrainState:
        """A state that another stage has left, as this one's programs expect it."""
        return jax.device_put(state, parallel.placed(self.mesh, self.programs.steps.specs))

    @property
    def plan(self) -> Plan:
        """What the programs were made for."""
        return self.programs.steps.plan

    @property
    def mesh(self) -> Mesh:
        """Where they run."""
        return self.programs.steps.mesh

    @functools.cached_property
    def order(self) -> data.Order:
        """Which example stands at which sample position."""
        return data.Order(
            self.plan.config.run.seed,
            len(self.train_source),
            shuffle=self.plan.config.data.shuffle,
            epoch_samples=self.plan.epoch_samples,
        )

    @functools.cached_property
    def validation_views(self) -> tuple[data.View, ...]:
        """Which validation examples are seen at which shape."""
        options = self.plan.config.data
        if options.rectangular:
            return data.rectangular_views(
                self.validation_source, self._reading, options.evaluation_size
            )
        return data.square_views(self.validation_source, options.evaluation_size)

    def local_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """This process's rows of the microbatches from sample position ``start`` to ``stop``."""
        options = self.plan.config.data
        return data.train_microbatches(
            self.train_source,
            self.order,
            data.Augment(shift=options.shift, flip=options.flip),
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
        """The microbatches from sample position ``start`` to ``stop``, on the devices.

        With ``patience`` also None, whenever so many seconds passed without one.
        """
        return on_devices(self.mesh, self.local_microbatches(start, stop), patience)

    def validation_batches(self, patience: float | None = None) -> Generator[OnDevices | None]:
        """Every validation batch, on the devices; ``patience`` as above."""
        return on_devices(
            self.mesh,
            data.evaluation_batches(
                self.validation_source,
                batch=self.plan.microbatch_samples,
                rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
                reading=self._reading,
                crops=self.plan.config.data.crops,
                views=self.validation_views,
                unreadable=self.unreadable.get("validation"),
            ),
            patience,
        )

    def warn_of_unreadable(self) -> None:
        """Have people told of every example that cannot be decoded; nothing is listed."""
        for split in self.unreadable.values():
            split.connect(lambda n, reason: self.console.warn(f"{n} cannot be decoded: {reason}"))

    def prepare(self) -> None:
        """Compile all that training will call, so that no step of the run waits for it."""
        for stage in self.stages:
            stage.programs.prepare([view.shape for view in stage.validation_views])

    @property
    def _reading(self) -> data.Reading:
        return reading_of(self.plan.config)


def reading_of(config: Config) -> data.Reading:
    """Who reads for a run, and how far ahead."""
    options = config.data
    threads, memory = options.threads or data.cores(), options.memory_mib * 2**20
    readers = threads * max(1, options.processes)
    return data.Reading(
        threads=threads,
        processes=options.processes,
        memory_bytes=memory,
        piece_bytes=min(data.PIECE, memory // (2 * readers)),  # work for each, and more waiting
    )


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run whose data is open and whose plan is resolved; nothing has been compiled."""

    config: Config
    console: Console
    devices: Sequence[jax.Device]
    splits: Sequence[tuple[data.Source, data.Source]]
    """Training and validation data of each stage."""
    facts: Facts
    plan: Plan
    """With the largest possible microbatch, where that is still to be chosen."""

    @functools.cached_property
    def stored(self) -> Any:
        """Shapes and types of the state as checkpoints hold it."""
        maker = self._maker(0, (), {})
        return maker.programs(maker.candidates[-1]).stored

    def build(self, *, evaluated_step: int | None = None) -> Run:
        """Choose the microbatch of each stage, which may compile, and set up its programs.

        Args:
          evaluated_step: a step whose state is to be evaluated and not trained: then only the
            evaluation is compiled, and only for this step's stage.
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
            maker = self._maker(index, tuple(chosen), options)
            microbatch = None
            if len(maker.candidates) > 1 and stages[index] in needed:
                with self.console.compiling(f"{what}, to find the largest microbatch that fits"):
                    microbatch = fitting(maker, for_evaluation=not trains)
            chosen.append(microbatch)
            made.append(maker.programs(microbatch))
            made[index].compile_s = maker.compile_s  # the search is part of it
        unreadable = {  # the source is that of all stages, so an id is the same example in each
            name: data.Unreadable(name, len(source), self.config.data.max_unreadable)
            for name, source in zip(("train", "validation"), self.splits[0], strict=True)
        }
        first, *later = (
            Run(*split, programs, self.console, unreadable=unreadable)
            for split, programs in zip(self.splits, made, strict=True)
        )
        return dataclasses.replace(first, later=tuple(later))

    def _maker(
        self, index: int, chosen: tuple[int | None, ...], options: Mapping[str, str]
    ) -> Maker:
        train, _ = self.splits[index]
        return Maker(
            self.config, self.facts, self.devices, train, options, chosen, len(self.splits)
        )


def opened(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Opened:
    """Open the data of each stage and resolve the plan, which finds most mistakes.

    Args:
      config: what to run.
      console: what people see.
      devices: None for all devices of all processes.

    Raises:
      UserError: the data cannot be opened, or the options do not fit together.
    """
    devices = jax.devices() if devices is None else devices
    opener = functools.cache(data.open_source)  # most stages read the same source alike
    splits = [
        tuple(open_source(stage.config, split, opener) for split in ("train", "validation"))
        for stage in stages_of(config)
    ]
    facts = facts_of(
        *splits[0],
        len(devices),
        jax.process_count(),
        crops_on_device=config.data.crops == "device",
    )
    return Opened(config, console, devices, splits, facts, resolve(config, facts))


def build(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Run:
    """Open a run and set up its programs for training; see `opened` and `Opened.build`."""
    return opened(config, console, devices).build()
