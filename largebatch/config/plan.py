"""The resolved plan of a run: every number that follows from the configuration and the hardware.

Pure and without devices: a plan for 2,048 GPUs can be made on a laptop.
"""

import dataclasses
import math
from typing import Literal

from largebatch.config import durations
from largebatch.config.facts import Facts
from largebatch.config.schema import Config
from largebatch.optim.rates import Rates, RateSchedule
from largebatch.optim.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """One stage of a run: a global batch, an image size and what follows from them."""

    config: Config
    facts: Facts
    workers: int
    """Workers of a step (W)."""
    images_per_worker: int
    """Images of a worker (n)."""
    microbatch: int
    """Workers that a device computes at a time (m)."""
    microbatches: int
    """Microbatches of a step on each device (k); W = D · m · k."""
    span: int
    """Workers that share BatchNorm statistics."""
    members: int
    """Devices that share one span: the size of the mesh's ``member`` axis."""
    norm_statistics: Literal["ema", "last", "precise"]
    """BatchNorm statistics of evaluations and checkpoints (``norm.statistics``)."""
    steps: int
    """Steps of this stage."""
    first_step: int
    """Steps of the run before this stage."""
    first_sample: int
    """Samples consumed before this stage."""
    counted_from: int
    """The step from which the intervals of log, evaluation and checkpoint are counted."""
    log_every_steps: int
    layers_every_steps: int
    evaluate_every_steps: int
    checkpoint_every_steps: int
    hosts_every_steps: int = 0
    """0: never."""
    replay_every_steps: int = 0
    """0: never."""
    evaluate_first_step: int = 0
    """The first evaluation, from which the interval counts; 0: after the first interval."""
    rate: float = 1.0
    """Factor of the learning rate in this stage."""

    @property
    def last_step(self) -> int:
        """The number of this stage's last step."""
        return self.first_step + self.steps

    @property
    def samples_per_step(self) -> int:
        """The global batch: W · n."""
        return self.workers * self.images_per_worker

    @property
    def epoch_samples(self) -> int:
        """Samples that make an epoch with this global batch, as ``data.epoch_end`` has it."""
        return durations.epoch_samples(
            self.facts.train_examples, self.samples_per_step, self.config.data.epoch_end
        )

    @property
    def local_images(self) -> int:
        """Images that one device computes at a time: m · n."""
        return self.microbatch * self.images_per_worker

    @property
    def microbatch_samples(self) -> int:
        """Images that all devices compute at a time: D · m · n."""
        return self.facts.devices * self.local_images

    @property
    def spans_per_microbatch(self) -> int:
        """Spans, or parts of one span, that lie in a device's microbatch; each has statistics."""
        return max(1, self.microbatch // self.span)

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in backward; Micikevicius et al. 2018 (arXiv 1710.03740), 3.2."""
        scale = self.config.loss.scale
        if scale != "auto":
            return scale
        # The loss is a mean over the global batch; so scaled, an image weighs about 1.
        half = self.config.model.dtype == "float16"
        return 2.0 ** math.floor(math.log2(self.samples_per_step)) if half else 1.0

    @property
    def norm_momentum(self) -> float:
        """Share of the running statistics kept at each step, in the long run."""
        norm = self.config.norm
        if self.norm_statistics == "last":
            return 0.0
        if norm.momentum_samples:
            return norm.momentum ** (self.samples_per_step / norm.momentum_samples)
        return norm.momentum


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run with nothing left open: its stages, and what spans them.

    Most runs have one stage. Steps count from 1 over the whole run; lengths are samples unless
    named steps.
    """

    config: Config
    """As configured; each stage has its own."""
    facts: Facts
    """With the image size of the first stage."""
    stages: tuple[StagePlan, ...]
    rate_schedule: RateSchedule
    stop_after_step: int
    """The step after which this process stops; ``steps`` unless ``run.stop_after`` is set."""
    stuck_after_step: int = 0
    """The step after which a loss like that of a guess means a stuck training; 0: never."""
    profile_steps: tuple[int, int] | None = None
    """The first and the last step that are traced; None: none."""
    asked_workers: int = 0
    """``batch.workers`` before it was rounded to the devices."""

    @property
    def first_stage(self) -> StagePlan:
        """The stage that a run begins with; of most runs the only one."""
        return self.stages[0]

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.stages[-1].last_step

    @property
    def norm_statistics(self) -> Literal["ema", "last", "precise"]:
        """BatchNorm statistics of evaluations and checkpoints, the same in all stages."""
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
        """Return the stage in which sample number ``position``, from 1, is consumed."""
        found = (s for s in reversed(self.stages) if position > s.first_sample)
        return next(found, self.first_stage)

    def steps_until(self, position: int) -> int:
        """The first number of steps after which so many samples, or more, are consumed."""
        stage = self.stage_of(position)
        done = math.ceil((position - stage.first_sample) / stage.samples_per_step)
        return min(self.steps, stage.first_step + done)

    @property
    def warmup_steps(self) -> int:
        """Steps until the warm-up is over; the next has the peak."""
        return self.steps_until(self.schedule.warmup)

    @property
    def evaluations(self) -> int:
        """Evaluations of the whole training."""
        return sum(self.evaluates_at(s) or s == self.steps for s in range(1, self.steps + 1))

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation is due after ``step`` steps."""
        stage = self.stage_at(step)
        first = stage.evaluate_first_step or stage.counted_from
        every = stage.evaluate_every_steps
        return every > 0 and step >= first and (step - first) % every == 0

    def is_due(self, step: int, every: int) -> bool:
        """Whether something is due after ``step`` steps that happens ``every`` so many, or never.

        Args:
          step: steps done.
          every: the interval in steps; 0: never.
        """
        return every > 0 and (step - self.stage_at(step).counted_from) % every == 0

    @property
    def samples(self) -> int:
        """Samples of the whole training."""
        return self.position(self.steps)

    @property
    def epochs(self) -> float:
        """Passes over the training set."""
        return self.samples / self.epoch_samples

    @property
    def epoch_samples(self) -> int:
        """Samples that make an epoch, with the first global batch."""
        return self.first_stage.epoch_samples

    @property
    def rounding(self) -> str:
        """What ``run.scale_to`` rounded so that the devices share the workers; empty: nothing."""
        workers = self.first_stage.workers
        if self.asked_workers in (0, workers):
            return ""
        return (
            f"batch.workers={workers} instead of {self.asked_workers}, which "
            f"{self.facts.devices} devices cannot share evenly"
        )

    @property
    def schedule(self) -> Schedule:
        """The learning rate by sample position, without the factors of stages."""
        return self.rate_schedule.learning_rate

    def rates(self, step: int) -> Rates:
        """What the update of step number ``step``, from 1, is given."""
        return self.rate_schedule.at(
            self.position(step - 1),
            self.position(step - 2) if step > 1 else None,
            step,
            scale=self.stage_at(step).rate,
            scale_before=self.stage_at(step - 1).rate,
        )
