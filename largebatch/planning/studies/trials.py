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
from largebatch.config import Config, resolve
from largebatch.errors import ConfigError
from largebatch.training.build import Run, build
from largebatch.training.evaluation import Result, evaluate, with_final_statistics
from largebatch.training.execution import run_step
from largebatch.training.state import TrainState


def prepared(config: Config) -> Run:
    """A run on one device, with all that a trial calls compiled."""
    made = build(config, tracking.Console(quiet=True), jax.devices()[:1])
    if made.later:
        raise ConfigError("batch.stages: a trial has one stage; leave them out")
    made.prepare()
    _ = made.programs.init
    return made


def with_programs(made: Run, config: Config) -> Run:
    """A run of another seed or schedule, with the programs of one that is prepared.

    Raises:
      ConfigError: more than these differs, or the statistics that evaluation uses.
    """
    if _compiled_in(config) != _compiled_in(made.plan.config):
        raise ConfigError("trials of one set of programs differ in seed, schedule and statistics")
    plan = resolve(config, made.plan.facts, microbatch=made.plan.microbatch)
    programs = copy.copy(made.programs)
    programs.steps = dataclasses.replace(made.programs.steps, plan=plan)
    return Run(made.train_source, made.validation_source, programs, made.console)


def trained(run: Run) -> TrainState:
    """The state at the end of the training."""
    plan = run.plan
    state = run.programs.init(np.int32(plan.config.run.seed))
    metrics = None
    with contextlib.closing(run.train_microbatches(0, plan.samples)) as feed:
        for step in range(1, plan.steps + 1):
            state, new = run_step(run.programs, state, feed, plan.rates(step))
            jax.block_until_ready(metrics)  # at most one step is under way while one is prepared
            metrics = new
    return state


def evaluated(run: Run, state: TrainState, statistics: str) -> Result:
    """A trained state on the validation split.

    Args:
      run: whose programs include those of precise statistics, if these are asked for.
      state: at the end of the training.
      statistics: as of ``norm.statistics``; ema or precise.
    """
    norm = dataclasses.replace(run.plan.config.norm, statistics=statistics)
    config = dataclasses.replace(run.plan.config, norm=norm)
    trial = with_programs(run, config)
    return evaluate(trial, with_final_statistics(trial, state, run.plan.samples))


def _compiled_in(config: Config) -> Config:
    """The configuration without what programs do not depend on."""
    known = Config()
    # 'last' changes the running statistics themselves, the other two only what evaluation takes.
    statistics = "last" if config.norm.statistics == "last" else known.norm.statistics
    norm = dataclasses.replace(config.norm, statistics=statistics)
    return dataclasses.replace(config, norm=norm, schedule=known.schedule, run=known.run)
