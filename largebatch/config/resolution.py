"""The resolution of options and facts to the plan of a run."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from largebatch.config import durations
from largebatch.config.checks import MAX_SAMPLES, check_ranges, check_stage, check_stages
from largebatch.config.facts import Facts
from largebatch.config.plan import Plan, StagePlan, placement
from largebatch.config.rates import rates_of
from largebatch.config.scaling import divided
from largebatch.config.schema import Config, value_of
from largebatch.config.stages import KEY, StageConfig, stages_of
from largebatch.errors import ConfigError
from largebatch.optim.parameters import read_multipliers

SHORT_RUN_STEPS = 500
"""In shorter runs, `norm.statistics=auto` means `precise`.

A moving average with the usual momentum of 0.9 covers about 10 steps and lags behind the weights,
which change fast in a short schedule. All published recipes have more steps."""

_INTERVALS = {
    "run": ("log_every", "layers_every", "evaluate_every", "checkpoint_every"),
    "health": ("hosts_every", "replay_every"),
}
"""Options with an interval, by section; those of ``health`` may be empty: never."""


def resolve(config: Config, facts: Facts, *, microbatch: int | None = None) -> Plan:
    """Check all options together and return the plan.

    Args:
      config: the configuration. With ``run.scale_to``, the number of workers is rounded to a
        multiple of the number of devices.
      facts: properties of dataset and hardware.
      microbatch: the value for ``batch.microbatch='auto'`` of the first stage; None, and in later
        stages: the largest possible value.

    Raises:
      ConfigError: a value or combination is impossible; the message has the nearest valid values.
    """
    asked_workers = config.batch.workers
    for stage in stages_of(config):
        check_ranges(stage.config)
    config = divided(config, facts.devices)
    stages = stages_of(config)
    read_multipliers(config.optimizer.lr_mults)
    for stage in stages:
        check_stage(stage.config, facts_at(stage.config, facts))
    check_stages(stages)
    batch = config.batch.images
    epoch = durations.epoch_samples(facts.train_examples, batch, config.data.epoch_end)
    per = {"per_step": batch, "per_epoch": epoch}
    counts = _steps_of(stages, _length(config, **per), **per)
    length = sum(n * s.config.batch.images for n, s in zip(counts, stages, strict=True))
    rates = rates_of(config, length=length, **per)
    plan = Plan(
        config=config,
        facts=facts_at(config, facts),
        stages=_stage_plans(stages, counts, facts, microbatch, length=length, **per),
        rate_schedule=rates,
        stop_after_step=sum(counts),
        asked_workers=asked_workers,
    )
    stop, stuck = config.run.stop_after, config.health.stuck_after
    at = functools.partial(durations.samples, length=length, **per)
    return dataclasses.replace(
        plan,
        stop_after_step=plan.nearest_step(at(stop, "run.stop_after")) if stop else plan.steps,
        stuck_after_step=plan.nearest_step(at(stuck, "health.stuck_after")) if stuck else 0,
        profile_steps=durations.step_range(config.run.profile, "run.profile", plan.steps),
    )


def facts_at(config: Config, facts: Facts) -> Facts:
    """Return the facts with the image size of a stage's configuration."""
    size = config.data.image_size
    if not size:
        return facts
    return dataclasses.replace(facts, image_shape=(size, size, facts.image_shape[2]))


def norm_statistics(config: Config, steps: int) -> Literal["ema", "last", "precise"]:
    """Return the BatchNorm statistics for evaluations in a run of ``steps`` steps."""
    if config.norm.statistics != "auto":
        return config.norm.statistics
    return "precise" if steps < SHORT_RUN_STEPS else "ema"


def _length(config: Config, *, per_step: int, per_epoch: int) -> int:
    """Return the samples of ``schedule.length``, before rounding up to whole steps."""
    text = config.schedule.length
    length = durations.samples(text, "schedule.length", per_step=per_step, per_epoch=per_epoch)
    if not 0 < length < MAX_SAMPLES - per_step:
        raise ConfigError(
            f"schedule.length={text!r}: expected at least one step and fewer than {MAX_SAMPLES:,} "
            f"samples, got {length:,} samples; use a length between them"
        )
    return length


def _steps_of(stages: Sequence[StageConfig], length: int, **per: int) -> list[int]:
    """Return the number of steps of each stage; a stage begins at the nearest whole step.

    Args:
      stages: the stages.
      length: samples of the training, before rounding up to whole steps.
      per: ``per_step`` and ``per_epoch`` of `durations.samples`.

    Raises:
      ConfigError: a stage has no step.
    """
    begins = [durations.samples(s.begin, KEY, **per, length=length) for s in stages[1:]]
    names = [*(s.begin for s in stages[1:]), f"the end ({length:,} samples)"]
    counts: list[int] = []
    start = 0
    for stage, end, name in zip(stages, [*begins, length], names, strict=True):
        batch = stage.config.batch.images
        # All but the last stage end at the nearest step; the last one has all that is left.
        nearest = math.ceil if stage is stages[-1] else round
        steps = nearest((end - start) / batch)
        if steps < 1:
            raise ConfigError(
                f"{KEY}: the stage at {stage.begin or 'the start'!r} has no step before {name!r}; "
                "move the stage or use a longer schedule.length"
            )
        counts.append(steps)
        start += steps * batch
    return counts


def _stage_plans(
    stages: Sequence[StageConfig],
    counts: Sequence[int],
    facts: Facts,
    microbatch: int | None,
    *,
    per_step: int,
    per_epoch: int,
    length: int,
) -> tuple[StagePlan, ...]:
    """Return the plans of all stages.

    Args:
      stages: the options of each stage.
      counts: number of steps of each stage.
      facts: properties of dataset and hardware.
      microbatch: as of `resolve`.
      per_step: samples of a step of the first stage.
      per_epoch: samples of an epoch.
      length: samples of the whole training.
    """
    at = functools.partial(durations.samples, per_epoch=per_epoch, length=length)
    text = stages[0].config.run.evaluate_first
    first_evaluation = at(text, "run.evaluate_first", per_step=per_step) if text else None
    statistics = norm_statistics(stages[0].config, sum(counts))
    plans: list[StagePlan] = []
    start = first_step = 0  # of this stage
    counted_from = counted_start = batch_before = 0  # step and sample of the last change of batch
    for stage, steps in zip(stages, counts, strict=True):
        config = stage.config
        batch = config.batch.images
        if plans and batch != plans[-1].samples_per_step:
            counted_from, counted_start = first_step, start
            batch_before = plans[-1].samples_per_step
        evaluate_first = 0
        # Up to half a step after a change of the batch, the step before it is the nearest.
        if first_evaluation is not None and 2 * (first_evaluation - counted_start) > batch_before:
            # Nearest to the first step or a later one.
            evaluate_first = max(batch // 2 + 1, first_evaluation - counted_start)
        at_stage = functools.partial(at, per_step=batch)
        plans.append(
            StagePlan(
                config=config,
                facts=facts_at(config, facts),
                norm_statistics=statistics,
                steps=steps,
                first_step=first_step,
                first_sample=start,
                counted_from=counted_from,
                evaluate_first=evaluate_first,
                rate=stage.rate,
                ema_kept=_ema_kept(config, at_stage),
                **placement(config, facts, None if plans else microbatch, start),
                **_intervals(config, at_stage),
            )
        )
        start, first_step = start + steps * batch, first_step + steps
    return tuple(plans)


def _intervals(config: Config, at: Callable[[str, str], int]) -> dict[str, int]:
    """Return the fields of a `StagePlan` with intervals in samples: at least a step, or 0: never.

    Args:
      config: the options of the stage.
      at: returns the samples of a duration of an option.
    """
    found = {}
    for section, names in _INTERVALS.items():
        for name in names:
            key = f"{section}.{name}"
            text = value_of(config, key)
            never = section == "health" and not text
            found[name] = 0 if never else max(config.batch.images, at(text, key))
    return found


def _ema_kept(config: Config, at: Callable[[str, str], int]) -> float:
    """Return the share of the averaged weights that a step keeps; 0: no average."""
    text = config.schedule.ema
    if not text:
        return 0.0
    horizon = at(text, "schedule.ema")
    if horizon <= 0:
        raise ConfigError(f"schedule.ema={text!r}: expected a horizon above 0; use '1 epochs'")
    # 0 would mean no average, and a horizon below a step is the result of scaling.
    return max(math.exp(-config.batch.images / horizon), sys.float_info.min)
