"""From a configuration and the devices at hand to everything a run is made of."""

import dataclasses
import functools
from collections.abc import Generator, Mapping, Sequence

import jax
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import Config, Plan, resolve, stages_of
from largebatch.parallel import compiler
from largebatch.tracking import Console
from largebatch.train.making import Maker, fitting
from largebatch.train.opening import facts_of, open_source
from largebatch.train.programs import Programs
from largebatch.train.state import TrainState
from largebatch.train.transfer import OnDevices, on_devices


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


def build(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Run:
    """Open the data, resolve the plan and set up the programs, for each stage of the run.

    Args:
      config: what to run.
      console: what people see.
      devices: None for all devices of all processes.
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
    resolve(config, facts)  # mistakes first, before anything is compiled

    options = compiler.program_options(
        compiler.platform_of(devices[0]),
        config.comm.allreduce,
        config.comm.xla_options,
        console.warn,
        deterministic=config.run.deterministic,
    )
    chosen: list[int | None] = []
    made: list[Programs] = []
    for index, (train, _) in enumerate(splits):
        maker = Maker(config, facts, devices, train, options, tuple(chosen), len(splits))
        microbatch = None
        if len(maker.candidates) > 1:
            with console.compiling("train steps, to find the most workers at a time that fit"):
                microbatch = fitting(maker)
        chosen.append(microbatch)
        made.append(maker.programs(microbatch))
        made[index].compile_s = maker.compile_s  # the search is part of it
    unreadable = {  # the source is that of all stages, so an id is the same example in each
        name: data.Unreadable(name, len(source), config.data.max_unreadable)
        for name, source in zip(("train", "validation"), splits[0], strict=True)
    }
    first, *later = (
        Run(*split, programs, console, unreadable=unreadable)
        for split, programs in zip(splits, made, strict=True)
    )
    return dataclasses.replace(first, later=tuple(later))
