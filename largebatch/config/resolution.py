"""Resolution of a configuration and the facts to the plan of a run; needs no devices."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Literal

from largebatch.config import durations, geometry
from largebatch.config.checks import (
    MAX_SAMPLES,
    check_augment,
    check_batch,
    check_deadline,
    check_model,
    check_pairs,
    check_ranges,
    check_stages,
)
from largebatch.config.facts import Facts
from largebatch.config.plan import Plan, StagePlan
from largebatch.config.rates import rates_of
from largebatch.config.scaling import divided
from largebatch.config.schema import Config
from largebatch.config.stages import KEY, Stage, stages_of
from largebatch.errors import ConfigError
from largebatch.optim.multipliers import read_multipliers

SHORT_RUN_STEPS = 500
"""In shorter runs, `norm.statistics=auto` means `precise`.

A moving average with the usual momentum of 0.9 covers about 10 steps and lags behind the weights,
which change fast in a short schedule. All published recipes have more steps."""


def resolve(
    config: Config, facts: Facts, *, microbatch: int | Sequence[int | None] | None = None
) -> Plan:
    """Check all options together and return the plan.

    Args:
      config: the configuration. With ``run.scale_to``, the number of workers is rounded to a
        multiple of the number of devices.
      facts: properties of dataset and hardware.
      microbatch: the value for ``batch.microbatch='auto'``, for the first stage or for each stage;
        None: the largest possible value.

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
        check_augment(stage.config)
        check_model(stage.config, facts_at(stage.config, facts))
        check_batch(stage.config, facts)
    check_stages(stages)
    batch = config.batch.images
    epoch = durations.epoch_samples(facts.train_examples, batch, config.data.epoch_end)
    per = {"per_step": batch, "per_epoch": epoch}
    asked = _length(config, **per)
    extents = _extents(stages, asked, **per)
    length = extents[-1].start + extents[-1].steps * stages[-1].config.batch.images
    choices = microbatch
    if not isinstance(choices, Sequence):
        choices = [choices, *[None] * (len(stages) - 1)]
    rates = rates_of(config, length=length, **per)
    first_evaluation = None
    if text := config.run.evaluate_first:
        first_evaluation = durations.samples(text, "run.evaluate_first", **per, length=length)
    steps = extents[-1].first_step + extents[-1].steps
    statistics = norm_statistics(config, steps)
    plan = Plan(
        config=config,
        facts=facts_at(config, facts),
        stages=tuple(
            _stage(
                stage,
                extent,
                facts,
                chosen,
                length=length,
                per_epoch=epoch,
                first_evaluation=first_evaluation,
                statistics=statistics,
            )
            for stage, extent, chosen in zip(stages, extents, choices, strict=True)
        ),
        rate_schedule=rates,
        stop_after_step=steps,
        asked_workers=asked_workers,
    )
    return _stopping(plan, length=length, **per)


@dataclasses.dataclass(frozen=True)
class _Extent:
    """First step and length of a stage."""

    start: int
    """Samples before the stage."""
    first_step: int
    """Steps before the stage."""
    steps: int
    counted_from: int
    """Steps before the first stage with this batch size."""
    counted_start: int
    """Samples before the first stage with this batch size."""
    batch_before: int
    """Batch size of the stage before ``counted_from``; 0: there is none."""


def _extents(
    stages: Sequence[Stage], length: int, *, per_step: int, per_epoch: int
) -> tuple[_Extent, ...]:
    """Return the extent of each stage; a stage begins at the nearest whole step.

    Raises:
      ConfigError: a stage has no step.
    """
    begins = [
        durations.samples(s.begin, KEY, per_step=per_step, per_epoch=per_epoch, length=length)
        for s in stages[1:]
    ]
    extents: list[_Extent] = []
    start, done, counted, current = 0, 0, (0, 0, 0), 0
    for stage, following in zip(stages, [*begins, None], strict=True):
        batch = stage.config.batch.images
        left = (length if following is None else following) - start
        steps = math.ceil(left / batch) if following is None else round(left / batch)
        if steps < 1:
            here = f"the stage at {stage.begin!r}" if stage.begin else "the first stage"
            end = f"the end at {length:,} samples"
            if following is not None:
                end = f"the stage at {stages[len(extents) + 1].begin!r} ({following:,} samples)"
            raise ConfigError(
                f"{KEY}: {here} has no step before {end}; move the stage or use a longer "
                "schedule.length"
            )
        if batch != current:
            counted, current = (done, start, current), batch
        extents.append(_Extent(start, done, steps, *counted))
        start, done = start + steps * batch, done + steps
    return tuple(extents)


def _stage(
    stage: Stage,
    extent: _Extent,
    facts: Facts,
    microbatch: int | None,
    *,
    length: int,
    per_epoch: int,
    first_evaluation: int | None,
    statistics: Literal["ema", "last", "precise"],
) -> StagePlan:
    """Return the plan of one stage.

    ``first_evaluation`` is the sample position of ``run.evaluate_first``, possibly in a different
    stage. ``statistics`` is the choice for the whole run.
    """
    config = stage.config
    workers, batch = config.batch.workers, config.batch.images
    span = _span(config)
    fitting = microbatch_candidates(config, facts)
    chosen = config.batch.microbatch
    if chosen == "auto":
        chosen = microbatch if microbatch is not None else fitting[-1]
    check_pairs(config, chosen, extent.start, fitting)
    geometry.check_microbatch(chosen, workers, facts.devices, span, fitting)
    check_deadline(config, members=max(1, span // chosen))

    def every(key: str, *, or_never: bool = False) -> int:
        section, _, name = key.partition(".")
        text = getattr(getattr(config, section), name)
        if or_never and not text:
            return 0
        wanted = durations.samples(text, key, per_step=batch, per_epoch=per_epoch, length=length)
        return max(batch, wanted)

    evaluate_first = 0
    if first_evaluation is not None:
        wait = first_evaluation - extent.counted_start
        # Up to half a step after a change of the batch, the step before it is the nearest.
        if 2 * wait > extent.batch_before:
            evaluate_first = max(batch // 2 + 1, wait)  # nearest to the first step or a later one
    ema_kept = 0.0
    if text := config.schedule.ema:
        horizon = durations.samples(
            text, "schedule.ema", per_step=batch, per_epoch=per_epoch, length=length
        )
        if horizon <= 0:
            raise ConfigError(f"schedule.ema={text!r}: expected a horizon above 0; use '1 epochs'")
        # 0 would mean no average, and a horizon below a step is the result of scaling.
        ema_kept = max(math.exp(-batch / horizon), sys.float_info.min)
    return StagePlan(
        config=config,
        facts=facts_at(config, facts),
        workers=workers,
        images_per_worker=config.batch.images_per_worker,
        microbatch=chosen,
        microbatches=workers // (facts.devices * chosen),
        span=span,
        members=max(1, span // chosen),
        norm_statistics=statistics,
        steps=extent.steps,
        first_step=extent.first_step,
        first_sample=extent.start,
        counted_from=extent.counted_from,
        log_every=every("run.log_every"),
        layers_every=every("run.layers_every"),
        evaluate_every=every("run.evaluate_every"),
        checkpoint_every=every("run.checkpoint_every"),
        evaluate_first=evaluate_first,
        hosts_every=every("health.hosts_every", or_never=True),
        replay_every=every("health.replay_every", or_never=True),
        rate=stage.rate,
        ema_kept=ema_kept,
    )


def _stopping(plan: Plan, *, per_step: int, per_epoch: int, length: int) -> Plan:
    """Add the steps of ``run.stop_after``, ``health.stuck_after`` and ``run.profile``."""
    per = {"per_step": per_step, "per_epoch": per_epoch, "length": length}

    def step_at(key: str, text: str) -> int:
        wanted = durations.samples(text, key, **per)
        stage = plan.stage_of(wanted)
        done = round((wanted - stage.first_sample) / stage.samples_per_step)
        return min(plan.steps, stage.first_step + max(1, done))

    stop, stuck = plan.config.run.stop_after, plan.config.health.stuck_after
    return dataclasses.replace(
        plan,
        stop_after_step=step_at("run.stop_after", stop) if stop else plan.stop_after_step,
        stuck_after_step=step_at("health.stuck_after", stuck) if stuck else 0,
        profile_steps=durations.step_range(plan.config.run.profile, "run.profile", plan.steps),
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


def microbatch_candidates(config: Config, facts: Facts) -> tuple[int, ...]:
    """Return the values of ``batch.microbatch`` that suit workers, devices and span, ascending.

    Those with an even number of images if pairs of images are mixed and there are such values.
    """
    choices = geometry.microbatch_choices(config.batch.workers, facts.devices, _span(config))
    if not config.augment.mixes:
        return choices
    return tuple(m for m in choices if m * config.batch.images_per_worker % 2 == 0) or choices


def _span(config: Config) -> int:
    return config.batch.workers if config.norm.span == "all" else config.norm.span


def _length(config: Config, *, per_step: int, per_epoch: int) -> int:
    """Return the samples of ``schedule.length``, before rounding up to whole steps."""
    text = config.schedule.length
    length = durations.samples(text, "schedule.length", per_step=per_step, per_epoch=per_epoch)
    if length <= 0:
        raise ConfigError(f"schedule.length={text!r}: expected at least one step; use '1 step'")
    if length + per_step >= MAX_SAMPLES:
        raise ConfigError(
            f"schedule.length={text!r}: expected fewer than {MAX_SAMPLES:,} samples, got "
            f"{length:,}; use a shorter training"
        )
    return length
