"""Trainings by the trainer's own steps, input and evaluation, without a directory of files.

What is compiled does not depend on the seed or on the schedule, so trials that differ in these
alone share their programs.
"""

import contextlib
import copy
import dataclasses

import jax
import numpy as np

from largebatch import tracking
from largebatch.config import Config, Plan, resolve
from largebatch.errors import ConfigError
from largebatch.training.evaluation import Result, evaluate, with_final_statistics
from largebatch.training.programs import run_step
from largebatch.training.setup import StageRun, build
from largebatch.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run of one stage that is ready to start."""

    plan: Plan
    stage: StageRun


def prepared(config: Config) -> Trial:
    """A run on one device, with all that a trial calls compiled."""
    made = build(config, tracking.Console(quiet=True), jax.devices()[:1])
    if len(made.stages) > 1:
        raise ConfigError("batch.stages: a trial has one stage; leave them out")
    made.prepare()
    _ = made.first_stage.programs.init
    return Trial(made.plan, made.first_stage)


def with_programs(made: Trial, config: Config) -> Trial:
    """A run of another seed or schedule, with the programs of one that is prepared.

    Raises:
      ConfigError: more than these differs, or the statistics that evaluation uses.
    """
    if _compiled_in(config) != _compiled_in(made.plan.config):
        raise ConfigError("trials of one set of programs differ in seed, schedule and statistics")
    plan = resolve(config, made.plan.facts, microbatch=made.stage.plan.microbatch)
    programs = copy.copy(made.stage.programs)
    programs.steps = dataclasses.replace(programs.steps, plan=plan.first_stage)
    return Trial(plan, dataclasses.replace(made.stage, programs=programs))


def trained(trial: Trial) -> TrainState:
    """The state at the end of the training."""
    plan, programs = trial.plan, trial.stage.programs
    state = programs.init(np.int32(plan.config.run.seed))
    metrics = None
    with contextlib.closing(trial.stage.train_microbatches(0, plan.samples)) as feed:
        for step in range(1, plan.steps + 1):
            state, new = run_step(programs, state, feed, plan.rates(step))
            jax.block_until_ready(metrics)  # at most one step is under way while one is prepared
            metrics = new
    return state


def evaluated(trial: Trial, state: TrainState, statistics: str) -> Result:
    """Evaluate a trained state on the validation split.

    Args:
      trial: whose programs include those of precise statistics, if these are asked for.
      state: at the end of the training.
      statistics: as of ``norm.statistics``; ema or precise.
    """
    norm = dataclasses.replace(trial.plan.config.norm, statistics=statistics)
    stage = with_programs(trial, dataclasses.replace(trial.plan.config, norm=norm)).stage
    return evaluate(stage, with_final_statistics(stage, state, trial.plan.samples))


def _compiled_in(config: Config) -> Config:
    """The configuration without what programs do not depend on."""
    known = Config()
    # 'last' changes the running statistics themselves, the other two only what evaluation takes.
    statistics = "last" if config.norm.statistics == "last" else known.norm.statistics
    norm = dataclasses.replace(config.norm, statistics=statistics)
    return dataclasses.replace(config, norm=norm, schedule=known.schedule, run=known.run)
