"""The plan of a run: what will happen, in samples; it needs no devices and no files."""

import dataclasses
import functools
import math
from typing import Literal

from largebatch.config import durations
from largebatch.config.checks import (
    check_deadline,
    check_microbatch,
    check_pairs,
    microbatch_choices,
)
from largebatch.config.facts import Facts
from largebatch.config.schema import Config
from largebatch.optim.schedules import Rates, RateSchedule, Schedule


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """The plan of one stage, with one global batch and one image size."""

    config: Config
    facts: Facts
    workers: int
    """Number of workers in a step (W)."""
    images_per_worker: int
    """Number of images of each worker (n)."""
    microbatch: int
    """Number of workers that a device computes at a time (m)."""
    microbatches: int
    """Number of microbatches of a step on each device (k); W = D · m · k."""
    span: int
    """Number of workers that share BatchNorm statistics."""
    members: int
    """Number of devices that share a span: the size of the mesh's ``member`` axis."""
    norm_statistics: Literal["ema", "last", "precise"]
    """BatchNorm statistics of evaluations and checkpoints (``norm.statistics``)."""
    steps: int
    """Number of steps of this stage."""
    first_step: int
    """Number of steps of the run before this stage."""
    first_sample: int
    """Number of samples consumed before this stage."""
    counted_from: int
    """Step at which the intervals of log, evaluation and checkpoint begin."""
    log_every: int
    """Samples between rows of the log; like all intervals at least a step, see `Plan.is_due`."""
    layers_every: int
    """Samples between rows of the layers' statistics."""
    evaluate_every: int
    """Samples between evaluations."""
    checkpoint_every: int
    """Samples between checkpoints."""
    hosts_every: int = 0
    """Samples between comparisons of the hosts' step times; 0: never."""
    replay_every: int = 0
    """Samples between repetitions of a step; 0: never."""
    evaluate_first: int = 0
    """Samples from ``counted_from`` to the first evaluation; 0: ``evaluate_every``."""
    rate: float = 1.0
    """Learning rate factor of this stage."""
    ema_kept: float = 0.0
    """Share of the averaged weights that a step keeps, after the first steps; 0: no average."""

    @property
    def last_step(self) -> int:
        """Number of the last step of this stage."""
        return self.first_step + self.steps

    @property
    def samples_per_step(self) -> int:
        """Global batch size: W · n."""
        return self.workers * self.images_per_worker

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch with this global batch, according to ``data.epoch_end``."""
        return durations.epoch_samples(
            self.facts.train_examples, self.samples_per_step, self.config.data.epoch_end
        )

    @property
    def local_images(self) -> int:
        """Images of a microbatch on one device: m · n."""
        return self.microbatch * self.images_per_worker

    @property
    def microbatch_samples(self) -> int:
        """Images of a microbatch on all devices: D · m · n."""
        return self.facts.devices * self.local_images

    @property
    def spans_per_microbatch(self) -> int:
        """Number of spans (or 1 for a part of a span) in the microbatch of a device."""
        return max(1, self.microbatch // self.span)

    @property
    def loss_scale(self) -> float:
        """Loss scale; Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2."""
        scale = self.config.loss.scale
        if scale != "auto":
            return scale
        # The loss is a mean over the global batch, and with sigmoids over the classes; this scale
        # gives each logit a weight near 1.
        terms = self.samples_per_step
        if self.config.loss.kind == "sigmoid":
            terms *= self.facts.classes
        half = self.config.model.dtype == "float16"
        return 2.0 ** math.floor(math.log2(terms)) if half else 1.0

    @property
    def norm_momentum(self) -> float:
        """Momentum of the running BatchNorm statistics per step, after the first steps."""
        return 0.0 if self.norm_statistics == "last" else self.config.norm.momentum

    def with_microbatch(self, microbatch: int) -> "StagePlan":
        """Return the plan with another value for ``batch.microbatch=auto``.

        Raises:
          ConfigError: the value is impossible.
        """
        placed = placement(self.config, self.facts, microbatch, self.first_sample)
        return dataclasses.replace(self, **placed)


@dataclasses.dataclass(frozen=True)
class Due:
    """What follows a step, decided from the plan alone.

    The loop dispatches steps ahead of what the host knows of them, and waits for the device only
    where something is due.
    """

    evaluates: bool = False
    """The validation split is evaluated."""
    keeps_statistics: bool = False
    """Training continues with the BatchNorm statistics that the evaluation computed."""
    saves: bool = False
    """A checkpoint is saved."""
    checkpoint_is_due: bool = False
    """An uninterrupted run saves it too."""
    stops_early: bool = False
    """The run stops here before its end, since it was asked to."""

    @property
    def has_row(self) -> bool:
        """Whether the log has a row for this step, whatever ``run.log_every`` is."""
        return self.evaluates or self.checkpoint_is_due

    @property
    def row_is_due(self) -> bool:
        """Whether an uninterrupted run has this row too."""
        return self.keeps_statistics or self.checkpoint_is_due

    @property
    def synchronizes(self) -> bool:
        """Whether the host waits for the step, so that nothing is in flight."""
        return self.evaluates or self.saves


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run: its stages, and the quantities that all stages share.

    Most runs have one stage. Steps are numbered from 1 over the whole run. Durations are samples
    unless their names contain ``step``.
    """

    config: Config
    """Configuration of the run; each stage has its own."""
    facts: Facts
    """Facts with the image size of the first stage."""
    stages: tuple[StagePlan, ...]
    rate_schedule: RateSchedule
    stop_after_step: int
    """Step after which this process stops; ``steps`` unless ``run.stop_after`` is set."""
    stuck_after_step: int = 0
    """Step after which a network no better than a guess is stuck; 0: never."""
    profile_steps: tuple[int, int] | None = None
    """First and last step to trace; None: no trace."""
    asked_workers: int = 0
    """``batch.workers`` before rounding to a multiple of the devices."""

    @property
    def first_stage(self) -> StagePlan:
        """The first stage, which is the only stage of most runs."""
        return self.stages[0]

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        return self.stages[-1].last_step

    @property
    def norm_statistics(self) -> Literal["ema", "last", "precise"]:
        """BatchNorm statistics of evaluations and checkpoints, equal in all stages."""
        return self.first_stage.norm_statistics

    def stage_at(self, step: int) -> StagePlan:
        """Return the stage of step number ``step``, from 1."""
        found = (s for s in reversed(self.stages) if step > s.first_step)
        return next(found, self.first_stage)

    def position(self, step: int) -> int:
        """Return the sample position after ``step`` steps."""
        stage = self.stage_at(step)
        return stage.first_sample + (step - stage.first_step) * stage.samples_per_step

    def stage_of(self, position: int) -> StagePlan:
        """Return the stage that consumes sample number ``position``, from 1."""
        found = (s for s in reversed(self.stages) if position > s.first_sample)
        return next(found, self.first_stage)

    def steps_until(self, position: int) -> int:
        """Return the smallest number of steps that consume at least ``position`` samples."""
        stage = self.stage_of(position)
        done = math.ceil((position - stage.first_sample) / stage.samples_per_step)
        return min(self.steps, stage.first_step + done)

    def nearest_step(self, position: int) -> int:
        """Return the number of steps, at least 1, that end nearest to a sample position."""
        stage = self.stage_of(position)
        done = round((position - stage.first_sample) / stage.samples_per_step)
        return min(self.steps, stage.first_step + max(1, done))

    @property
    def warmup_steps(self) -> int:
        """Number of warm-up steps."""
        return self.steps_until(self.schedule.warmup)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the run."""
        count = 1  # after the last step
        for stage in self.stages:
            last = min(stage.last_step, self.steps - 1)
            until, before = (
                self._multiples(stage, step, stage.evaluate_every, stage.evaluate_first)
                for step in (last, stage.first_step)
            )
            count += until - before
        return count

    def evaluates_at(self, step: int) -> bool:
        """Return whether an evaluation is due after step number ``step``."""
        stage = self.stage_at(step)
        return self.is_due(step, stage.evaluate_every, first=stage.evaluate_first)

    def due(self, step: int, *, stop_requested: bool = False) -> Due:
        """Return what follows step number ``step``.

        Args:
          step: the step that has been dispatched, from 1.
          stop_requested: the processes have agreed to stop.
        """
        is_last, completes = step == self.stop_after_step, step == self.steps
        evaluation_due = self.evaluates_at(step)
        checkpoint_due = self.is_due(step, self.stage_at(step).checkpoint_every)
        return Due(
            evaluates=is_last or evaluation_due,
            # A run that stops between its evaluations continues as if it had not been evaluated.
            keeps_statistics=evaluation_due or completes,
            saves=is_last or checkpoint_due or stop_requested,
            checkpoint_is_due=completes or checkpoint_due,
            stops_early=stop_requested and not is_last,
        )

    def is_due(self, step: int, every: int, *, first: int = 0) -> bool:
        """Return whether an action with the interval ``every`` is due after ``step``.

        It is due at the step nearest to each multiple of the interval. So actions every epoch and
        every five epochs meet in one step also if an epoch is no whole number of steps. What the
        last step of the run reaches is due there, not at the step before.

        Args:
          step: number of completed steps.
          every: interval in samples, counted from where the batch size changed; 0: never.
          first: samples to the first action, after which the interval begins; 0: ``every``.
        """
        if every <= 0 or step <= 0:
            return False
        stage = self.stage_at(step)
        due, before = (self._multiples(stage, s, every, first) for s in (step, step - 1))
        return due > before

    def _multiples(self, stage: StagePlan, step: int, every: int, first: int) -> int:
        """Return the number of actions that are due at a step of a stage or before.

        ``every`` and ``first`` are those of `is_due`.
        """
        done = (step - stage.counted_from) * stage.samples_per_step
        until = 2 * done + stage.samples_per_step  # the middle of the next step, in half samples
        if step < self.steps:
            start = self.position(stage.counted_from)
            until = min(until, 2 * (self._last_step_start - start))
        return max(0, 1 + (until - 2 * (first or every)) // (2 * every))

    @functools.cached_property
    def _last_step_start(self) -> int:
        """Sample position before the last step."""
        return self.position(self.steps - 1)

    @property
    def samples(self) -> int:
        """Number of samples of the run."""
        return self.position(self.steps)

    @property
    def epochs(self) -> float:
        """Number of epochs of the run."""
        return self.samples / self.epoch_samples

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch, with the global batch of the first stage."""
        return self.first_stage.epoch_samples

    @property
    def rounding(self) -> str:
        """Description of how ``run.scale_to`` rounded ``batch.workers``; empty if it did not."""
        workers = self.first_stage.workers
        if self.asked_workers in (0, workers):
            return ""
        return (
            f"batch.workers={workers} instead of {self.asked_workers}, which "
            f"{self.facts.devices} devices cannot share evenly"
        )

    @property
    def guess(self) -> float:
        """Loss of a network that has learned nothing but the mean target of a class.

        This is 1 / classes, also with label smoothing and mixed images, since the targets of an
        image sum to 1. With a threshold a mixed image may have two classes; the result is then the
        larger of the losses for one and for two, which no network exceeds that has learned.
        """
        classes, loss = self.facts.classes, self.config.loss
        if loss.kind == "softmax":
            return math.log(classes)
        mixes = any(stage.config.augment.mixes for stage in self.stages)
        most = 2 if loss.target_threshold and mixes else 1
        return max(_entropy(count / classes) for count in range(1, most + 1))

    @property
    def schedule(self) -> Schedule:
        """Learning rate by sample position, without the factors of the stages."""
        return self.rate_schedule.learning_rate

    def rates(self, step: int) -> Rates:
        """Return the hyperparameters of the update of step number ``step``, from 1."""
        return self.rate_schedule.at(
            self.position(step - 1),
            self.position(step - 2) if step > 1 else None,
            step,
            scale=self.stage_at(step).rate,
            scale_before=self.stage_at(step - 1).rate,
        )


def _entropy(probability: float) -> float:
    """Return the entropy of a yes or no with this probability of yes, in nats."""
    parts = (probability, 1 - probability)
    return -sum(part * math.log(part) for part in parts if part > 0)


def microbatch_candidates(config: Config, facts: Facts) -> tuple[int, ...]:
    """Return the values of ``batch.microbatch`` that suit workers, devices and span, ascending.

    Those with an even number of images if pairs of images are mixed and there are such values.
    """
    choices = microbatch_choices(config.batch.workers, facts.devices, _span(config))
    if not config.augment.mixes:
        return choices
    return tuple(m for m in choices if m * config.batch.images_per_worker % 2 == 0) or choices


def placement(config: Config, facts: Facts, microbatch: int | None, start: int) -> dict[str, int]:
    """Return the fields of a `StagePlan` with workers, microbatches and spans.

    Args:
      config: the options of the stage.
      facts: properties of dataset and hardware.
      microbatch: the value for ``batch.microbatch='auto'``; None: the largest possible value.
      start: samples before the stage.
    """
    workers, devices, span = config.batch.workers, facts.devices, _span(config)
    fitting = microbatch_candidates(config, facts)
    chosen = config.batch.microbatch
    if chosen == "auto":
        chosen = fitting[-1] if microbatch is None else microbatch
    check_pairs(config, chosen, start)
    check_microbatch(chosen, workers, devices, span, fitting)
    members = max(1, span // chosen)
    check_deadline(config, members=members)
    return {
        "workers": workers,
        "images_per_worker": config.batch.images_per_worker,
        "microbatch": chosen,
        "microbatches": workers // (devices * chosen),
        "span": span,
        "members": members,
    }


def _span(config: Config) -> int:
    return config.batch.workers if config.norm.span == "all" else config.norm.span
