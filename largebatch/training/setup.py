"""Set up a run: open its data, resolve its plan, choose microbatches and set up its programs.

`open_run` does what needs no compiler, `OpenedRun.build` does the rest.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from largebatch import data
from largebatch.config import Config, Facts, Plan, resolve, stages_of
from largebatch.config.unused import settled
from largebatch.data.open import facts_of, grouped_by_class, open_source, open_validation_sets
from largebatch.parallel import xla_options
from largebatch.tracking import Console
from largebatch.training.microbatch import StageBuilder, largest_microbatch
from largebatch.training.programs import Programs
from largebatch.training.run import Run
from largebatch.training.stage import Stage

PyTree = Any


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
        options = xla_options.program_options(self.devices[0], self.config, self.console.warn)
        stages = self.plan.stages
        trains = evaluated_step is None
        needed = stages if trains else (self.plan.stage_at(evaluated_step),)
        what = "train steps" if trains else "evaluation"
        for index in range(len(stages) if trains else 0):
            builder = self._builder(index, (None,) * index, {})
            builder.programs(builder.candidates[-1]).steps.objective.check_statistics()
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
            Stage(*split, programs, unreadable, further)
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
    config: Config,
    console: Console,
    devices: Sequence[jax.Device] | None = None,
    *,
    given: Collection[str] | None = None,
) -> OpenedRun:
    """Open the data of each stage and resolve the plan, which finds most mistakes.

    Args:
      config: configuration of the run.
      console: prints progress and warnings.
      devices: None for all devices of all processes.
      given: the user's options; others that the dataset, the optimizer or the devices have no use
        for get their defaults. None: all options are the user's.

    Raises:
      UserError: the data cannot be opened, or options contradict each other.
    """
    found = jax.devices() if devices is None else devices
    return settled(config, given, lambda each: _opened(each, console, found), console.note)[1]


def _opened(config: Config, console: Console, devices: Sequence[jax.Device]) -> OpenedRun:
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
    plan = resolve(config, facts)
    pairs = zip(stages, splits, strict=True)  # all stages have the same examples
    unshuffled = next((train for s, (train, _) in pairs if not s.config.data.shuffle), None)
    if unshuffled is not None and grouped_by_class(unshuffled):
        console.warn(
            "data.shuffle=false: the training images are in the order of their classes, so a "
            "batch has few of them; use data.shuffle=true, or shuffle the dataset"
        )
    return OpenedRun(config, console, devices, splits, further, facts, plan)


def build(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Run:
    """Open a run and set up its programs for training; see `open_run` and `OpenedRun.build`."""
    return open_run(config, console, devices).build()
