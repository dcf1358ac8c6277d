"""Accuracy against the batch as a share of the data set, at equal epochs.

Expected is the shape of Goyal et al. 2017 (arXiv 1706.02677, figure 1): no loss up to some batch,
then a growing one. Rates are chosen for the smallest batch and scaled, not searched for at each
batch. Trainings use the trainer's own steps, input and evaluation without a directory of files.
Their programs do not depend on the seed or the schedule, so trials that differ in these alone share
them.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from largebatch import tracking
from largebatch.config import Config, Plan, freeze, resolve
from largebatch.errors import ConfigError
from largebatch.planning.studies import percent, spread
from largebatch.training.dispatch import run_step
from largebatch.training.evaluation import Result, evaluate, with_final_statistics
from largebatch.training.run import StageRun
from largebatch.training.setup import build
from largebatch.training.state import TrainState

_TRAIN = 1437  # images of the digits


@dataclasses.dataclass(frozen=True)
class Grid:
    """The options that all trainings share."""

    workers: tuple[int, ...] = (2, 8, 32, 88)
    """Of a step; the batch is this times ``images``."""
    images: int = 16
    """Of a worker, which has its own BatchNorm statistics."""
    most: int = 512
    """Images at a time; larger batches are accumulated."""
    epochs: int = 20
    warmup: int = 5
    """Epochs of the warm-up, if an arm has one."""
    label_smoothing: float = 0.1
    width: int = 4
    sgd_per_256: float = 2.0
    """Peak learning rate for a batch of 256, scaled linearly."""
    lars_per_256: float = 2.8
    """The same for LARS, scaled by the square root."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """A rule with or without warm-up and label smoothing, trained at every batch."""

    rule: str
    """sgd or lars."""
    warmup: bool = True
    smoothing: bool = True

    @property
    def name(self) -> str:
        """The arm in words."""
        without = [
            text
            for text, there in (("warm-up", self.warmup), ("label smoothing", self.smoothing))
            if not there
        ]
        rule = {"sgd": "SGD, linear scaling", "lars": "LARS, √ scaling"}[self.rule]
        return rule + "".join(f", no {text}" for text in without)


ARMS = tuple(
    arm
    for rule in ("sgd", "lars")
    for arm in (Arm(rule), Arm(rule, warmup=False), Arm(rule, smoothing=False))
)


def full() -> tuple[Grid, Sequence[Arm]]:
    """Return the grid and the arms of the record."""
    return Grid(), ARMS


def quick() -> tuple[Grid, Sequence[Arm]]:
    """Return a small grid with each rule, to see that it runs."""
    arms = Arm("sgd"), Arm("sgd", warmup=False), Arm("lars", smoothing=False)
    return Grid(workers=(4,), images=8, most=32, epochs=2, warmup=1, width=2), arms


def config(grid: Grid, arm: Arm, workers: int, seed: int = 0) -> Config:
    """Return the trainer's configuration of one training."""
    batch = workers * grid.images
    sgd = arm.rule == "sgd"
    return freeze(
        {
            "model": {"name": "resnet18", "width": grid.width, "stem": "small"},
            "norm": {
                "statistics": "precise",
                "precise_batches": max(1, round(_TRAIN / batch)),  # about one epoch
            },
            "batch": {
                "workers": workers,
                "images_per_worker": grid.images,
                "microbatch": _microbatch(workers, grid.most // grid.images),
            },
            "data": {"source": "digits", "shift": 1},
            "optimizer": {
                "name": arm.rule,
                "weight_decay": 5e-4,
                "trust_coefficient": 0.01,
            },
            "loss": {"label_smoothing": grid.label_smoothing if arm.smoothing else 0.0},
            "schedule": {
                "length": f"{grid.epochs} epochs",
                "warmup": f"{grid.warmup if arm.warmup else 0} epochs",
                "per_256": grid.sgd_per_256 if sgd else grid.lars_per_256,
                "scaling": "linear" if sgd else "sqrt",
            },
            "run": {"seed": seed},
        }
    )


def _microbatch(workers: int, most: int) -> int:
    """Return the most workers at a time that divide a step's evenly."""
    return max(m for m in range(1, most + 1) if workers % m == 0)


def measure(
    grid: Grid, arms: Sequence[Arm], seeds: Sequence[int], say: Callable[[str], None]
) -> dict[str, Any]:
    """Train every arm at every batch with every seed.

    Args:
      grid: options that the trainings share.
      arms: rules to compare.
      seeds: of parameters, data order and augmentation.
      say: called with a line for each result.

    Returns:
      The record without date, command and environment.
    """
    results = []
    for workers in grid.workers:
        for arm, found in _trained(grid, arms, workers, seeds):
            results.append({"name": arm.name} | dataclasses.asdict(arm) | found)
            precise, ema = (percent(found[key]) for key in ("top1", "top1_ema"))
            say(f"{arm.name:40s} batch {found['batch']:5d}  {precise} %  (ema: {ema} %)")
    return {"grid": dataclasses.asdict(grid), "seeds": list(seeds), "results": results}


def _trained(
    grid: Grid, arms: Sequence[Arm], workers: int, seeds: Sequence[int]
) -> Iterator[tuple[Arm, dict[str, Any]]]:
    """Yield each arm's result at one batch; arms that differ in the schedule share programs."""
    shared: dict[tuple[str, bool], Any] = {}
    for arm in arms:
        key = arm.rule, arm.smoothing
        if key not in shared:
            shared[key] = prepared(config(grid, arm, workers))
        precise, ema = [], []
        for seed in seeds:
            run = with_programs(shared[key], config(grid, arm, workers, seed))
            state = trained(run)
            precise.append(evaluated(run, state, "precise").top1)
            ema.append(evaluated(run, state, "ema").top1)
        plan = run.plan
        yield (
            arm,
            {
                "batch": plan.first_stage.samples_per_step,
                "share": plan.first_stage.samples_per_step / plan.facts.train_examples,
                "steps": plan.steps,
                "epochs": plan.epochs,
                "peak": plan.schedule.peak,
                "top1": spread(precise),
                "top1_ema": spread(ema),
            },
        )


# ---- trainings without a directory


@dataclasses.dataclass(frozen=True)
class Trial:
    """A compiled training of one stage."""

    plan: Plan
    stage: StageRun


def prepared(config: Config) -> Trial:
    """Compile a training on one device.

    Raises:
      ConfigError: it has several stages.
    """
    made = build(config, tracking.Console(quiet=True), jax.devices()[:1])
    if len(made.stages) > 1:
        raise ConfigError("batch.stages: expected one stage")
    made.prepare()
    _ = made.first_stage.programs.init
    return Trial(made.plan, made.first_stage)


def with_programs(made: Trial, config: Config) -> Trial:
    """Return a training of another seed, schedule or statistics with the same programs.

    Raises:
      ConfigError: other options differ.
    """
    if _compiled_in(config) != _compiled_in(made.plan.config):
        raise ConfigError("trial: expected to differ in seed, schedule and norm.statistics only")
    plan = resolve(config, made.plan.facts, microbatch=made.stage.plan.microbatch)
    programs = copy.copy(made.stage.programs)
    programs.steps = dataclasses.replace(programs.steps, plan=plan.first_stage)
    return Trial(plan, dataclasses.replace(made.stage, programs=programs))


def trained(trial: Trial) -> TrainState:
    """Train; return the last state."""
    plan, programs = trial.plan, trial.stage.programs
    state = programs.init(np.int32(plan.config.run.seed))
    metrics = None
    with contextlib.closing(trial.stage.train_microbatches(0, plan.samples)) as feed:
        for step in range(1, plan.steps + 1):
            state, new = run_step(programs, state, feed, plan.rates(step))
            jax.block_until_ready(metrics)  # at most one step runs while the next is prepared
            metrics = new
    return state


def evaluated(trial: Trial, state: TrainState, statistics: str) -> Result:
    """Evaluate a trained state on the validation split.

    Args:
      trial: the training; its programs include those of the statistics.
      state: at its end.
      statistics: ``norm.statistics``, ema or precise.
    """
    norm = dataclasses.replace(trial.plan.config.norm, statistics=statistics)
    stage = with_programs(trial, dataclasses.replace(trial.plan.config, norm=norm)).stage
    return evaluate(stage, with_final_statistics(stage, state, trial.plan.samples))


def _compiled_in(config: Config) -> Config:
    """Return the configuration without options that programs do not depend on."""
    known = Config()
    # 'last' changes the running statistics themselves, the other two only the evaluation.
    statistics = "last" if config.norm.statistics == "last" else known.norm.statistics
    norm = dataclasses.replace(config.norm, statistics=statistics)
    return dataclasses.replace(config, norm=norm, schedule=known.schedule, run=known.run)
