"""From a configuration and the facts to the plan of a run. Pure and without devices."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from largebatch.config import durations, geometry
from largebatch.config.checks import (
    MAX_SAMPLES,
    check_batch,
    check_deadline,
    check_model,
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

SHORT_RUN_STEPS = 500
"""Below it `norm.statistics=auto` is precise: the moving average, whose memory is 10 steps with the
usual momentum of 0.9, lags behind weights that a short schedule moves fast. Every published recipe
has more steps."""


def resolve(
    config: Config, facts: Facts, *, microbatch: int | Sequence[int | None] | None = None
) -> Plan:
    """Validate everything together and return the plan.

    Args:
      config: the configuration; with ``run.scale_to`` its workers are rounded to the devices.
      facts: what is known of data and devices.
      microbatch: the choice made for ``batch.microbatch='auto'``, of the first stage or of each;
        None takes the largest possible.

    Raises:
      ConfigError: an impossible value or combination, with the numbers and the nearest that work.
    """
    asked_workers = config.batch.workers
    for stage in stages_of(config):
        check_ranges(stage.config)
    config = divided(config, facts.devices)
    stages = stages_of(config)
    for stage in stages:
        check_model(stage.config, facts_at(stage.config, facts))
        check_batch(stage.config, facts)
    check_stages(stages)
    batch = config.batch.images
    epoch = durations.epoch_samples(facts.train_examples, batch, config.data.epoch_end)
    per = {"per_step": batch, "per_epoch": epoch}
    asked = _length(config, **per)
    places = _places(stages, asked, **per)
    length = places[-1].start + places[-1].steps * stages[-1].config.batch.images
    choices = microbatch
    if not isinstance(choices, Sequence):
        choices = [choices, *[None] * (len(stages) - 1)]
    rates = rates_of(config, length=length, **per)
    first_evaluation = None
    if text := config.run.evaluate_first:
        first_evaluation = durations.samples(text, "run.evaluate_first", **per, length=length)
    steps = places[-1].first_step + places[-1].steps
    statistics = norm_statistics(config, steps)
    plan = Plan(
        config=config,
        facts=facts_at(config, facts),
        stages=tuple(
            _stage(
                stage,
                place,
                facts,
                chosen,
                length=length,
                per_epoch=epoch,
                first_evaluation=first_evaluation,
                statistics=statistics,
            )
            for stage, place, chosen in zip(stages, places, choices, strict=True)
        ),
        rate_schedule=rates,
        stop_after_step=steps,
        asked_workers=asked_workers,
    )
    return _stopping(plan, length=length, **per)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a stage lies."""

    start: int
    """In samples."""
    first_step: int
    steps: int
    counted_from: int
    """The step at which a batch of this size began."""
    counted_start: int
    """The same, in samples."""


def _places(
    stages: Sequence[Stage], length: int, *, per_step: int, per_epoch: int
) -> tuple[_Place, ...]:
    """Each stage's place; each begins at the whole step that is nearest to where it should.

    Raises:
      ConfigError: a stage is left without a step.
    """
    begins = [
        durations.samples(s.begin, KEY, per_step=per_step, per_epoch=per_epoch, length=length)
        for s in stages[1:]
    ]
    places: list[_Place] = []
    start, done, counted, before = 0, 0, (0, 0), None
    for stage, following in zip(stages, [*begins, None], strict=True):
        batch = stage.config.batch.images
        left = (length if following is None else following) - start
        steps = math.ceil(left / batch) if following is None else round(left / batch)
        if steps < 1:
            raise ConfigError(
                f"{KEY}: the stage at {stage.begin or '0'!r} is left without a step before "
                f"{following if following is not None else length:,} samples; move it or train "
                "longer"
            )
        if batch != before:
            counted, before = (done, start), batch
        places.append(_Place(start, done, steps, *counted))
        start, done = start + steps * batch, done + steps
    return tuple(places)


def _stage(
    stage: Stage,
    place: _Place,
    facts: Facts,
    microbatch: int | None,
    *,
    length: int,
    per_epoch: int,
    first_evaluation: int | None,
    statistics: Literal["ema", "last", "precise"],
) -> StagePlan:
    """Return the plan of one stage.

    ``first_evaluation`` is the sample position asked for, in whichever stage it lies;
    ``statistics`` those of the whole run.
    """
    config = stage.config
    workers, batch = config.batch.workers, config.batch.images
    span = _span(config)
    fitting = microbatch_candidates(config, facts)
    chosen = config.batch.microbatch
    if chosen == "auto":
        chosen = microbatch if microbatch is not None else fitting[-1]
    geometry.check_microbatch(chosen, workers, facts.devices, span, fitting)
    check_deadline(config, members=max(1, span // chosen))

    def every(key: str, *, or_never: bool = False) -> int:
        section, _, name = key.partition(".")
        text = getattr(getattr(config, section), name)
        if or_never and not text:
            return 0
        wanted = durations.samples(text, key, per_step=batch, per_epoch=per_epoch, length=length)
        return max(1, round(wanted / batch))

    evaluate_first = 0  # where that is over when this batch begins
    if first_evaluation is not None and (wait := first_evaluation - place.counted_start) > 0:
        evaluate_first = place.counted_from + max(1, round(wait / batch))
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
        steps=place.steps,
        first_step=place.first_step,
        first_sample=place.start,
        counted_from=place.counted_from,
        log_every_steps=every("run.log_every"),
        layers_every_steps=every("run.layers_every"),
        evaluate_every_steps=every("run.evaluate_every"),
        checkpoint_every_steps=every("run.checkpoint_every"),
        evaluate_first_step=evaluate_first,
        hosts_every_steps=every("health.hosts_every", or_never=True),
        replay_every_steps=every("health.replay_every", or_never=True),
        rate=stage.rate,
    )


def _stopping(plan: Plan, *, per_step: int, per_epoch: int, length: int) -> Plan:
    """The plan with the steps of ``run.stop_after`` and ``health.stuck_after``."""
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
    """The facts with the image size of a stage's configuration."""
    size = config.data.image_size
    if not size:
        return facts
    return dataclasses.replace(facts, image_shape=(size, size, facts.image_shape[2]))


def norm_statistics(config: Config, steps: int) -> Literal["ema", "last", "precise"]:
    """Return the statistics that evaluations of a run of ``steps`` steps use."""
    if config.norm.statistics != "auto":
        return config.norm.statistics
    return "precise" if steps < SHORT_RUN_STEPS else "ema"


def microbatch_candidates(config: Config, facts: Facts) -> tuple[int, ...]:
    """The values of ``batch.microbatch`` that fit workers, devices and span, ascending."""
    return geometry.microbatch_choices(config.batch.workers, facts.devices, _span(config))


def _span(config: Config) -> int:
    return config.batch.workers if config.norm.span == "all" else config.norm.span


def _length(config: Config, *, per_step: int, per_epoch: int) -> int:
    """Samples that the training was asked for, before rounding up to whole steps."""
    text = config.schedule.length
    length = durations.samples(text, "schedule.length", per_step=per_step, per_epoch=per_epoch)
    if length <= 0:
        raise ConfigError(f"schedule.length={text!r} is no training; give at least a step")
    if length + per_step >= MAX_SAMPLES:
        raise ConfigError(
            f"schedule.length={text!r} is {length:,} samples; at most {MAX_SAMPLES:,} can be "
            "counted"
        )
    return length
