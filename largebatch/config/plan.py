"""The resolved plan of a run: every number that follows from the configuration and the hardware.

Pure and without devices: a plan for 2,048 GPUs can be made on a laptop.
"""

import dataclasses
import math

from largebatch.config import durations, geometry
from largebatch.config.load import options
from largebatch.config.schema import Config
from largebatch.errors import ConfigError
from largebatch.optim.rates import Rates
from largebatch.optim.schedules import Schedule, peak_rate

_MAX_SAMPLES = 2**31  # so that a sample position fits any integer on a device
_MAX_SEED = 2**31  # it travels to the devices as int32


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the plan needs to know of the data and the hardware."""

    train_examples: int
    validation_examples: int
    classes: int
    image_shape: tuple[int, int, int]
    devices: int
    processes: int = 1
    stored_size: int = 0
    """Pixels a side of the decoded pictures that devices cut their crops from; 0: they do not."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run with nothing left open; positions and lengths in samples unless named steps."""

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
    steps: int
    schedule: Schedule
    log_every_steps: int
    layers_every_steps: int
    evaluate_every_steps: int
    checkpoint_every_steps: int
    stop_after_step: int
    """The step after which this process stops; ``steps`` unless ``run.stop_after`` is set."""

    @property
    def samples_per_step(self) -> int:
        """The global batch: W · n."""
        return self.workers * self.images_per_worker

    @property
    def samples(self) -> int:
        """Samples of the whole training."""
        return self.steps * self.samples_per_step

    @property
    def epochs(self) -> float:
        """Passes over the training set."""
        return self.samples / self.epoch_samples

    @property
    def epoch_samples(self) -> int:
        """Samples that make an epoch, as ``data.epoch_end`` has it."""
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

    def rates(self, step: int) -> Rates:
        """What the update of step number ``step``, from 1, is given."""
        rule = self.config.optimizer
        return Rates(
            learning_rate=self.schedule((step - 1) * self.samples_per_step),
            weight_decay=rule.weight_decay,
            momentum=rule.momentum,
            step=step,
        )

    @property
    def norm_momentum(self) -> float:
        """Share of the running statistics kept at each step."""
        norm = self.config.norm
        if norm.momentum_samples:
            return norm.momentum ** (self.samples_per_step / norm.momentum_samples)
        return norm.momentum


def resolve(config: Config, facts: Facts, *, microbatch: int | None = None) -> Plan:
    """Validate everything together and return the plan.

    Args:
      config: the configuration.
      facts: what is known of data and devices.
      microbatch: the choice made for ``batch.microbatch='auto'``; None takes the largest possible.

    Raises:
      ConfigError: an impossible value or combination, with the numbers and the nearest that work.
    """
    _check_ranges(config)
    _check_model(config, facts)
    _check_batch(config, facts)
    batch = config.batch.workers * config.batch.images_per_worker
    epoch = durations.epoch_samples(facts.train_examples, batch, config.data.epoch_end)
    per = {"per_step": batch, "per_epoch": epoch}
    length = _length(config, **per)
    workers, images = config.batch.workers, config.batch.images_per_worker
    span = _span(config)
    fitting = microbatch_candidates(config, facts)
    chosen = config.batch.microbatch
    if chosen == "auto":
        chosen = microbatch if microbatch is not None else fitting[-1]
    geometry.check_microbatch(chosen, workers, facts.devices, span, fitting)

    steps = math.ceil(length / batch)

    def every(key: str, text: str) -> int:
        return max(1, round(durations.samples(text, key, length=steps * batch, **per) / batch))

    stop_after = config.run.stop_after
    return Plan(
        config=config,
        facts=facts,
        workers=workers,
        images_per_worker=images,
        microbatch=chosen,
        microbatches=workers // (facts.devices * chosen),
        span=span,
        members=max(1, span // chosen),
        steps=steps,
        schedule=_schedule(config, steps * batch, **per),
        log_every_steps=every("run.log_every", config.run.log_every),
        layers_every_steps=every("run.layers_every", config.run.layers_every),
        evaluate_every_steps=every("run.evaluate_every", config.run.evaluate_every),
        checkpoint_every_steps=every("run.checkpoint_every", config.run.checkpoint_every),
        stop_after_step=min(steps, every("run.stop_after", stop_after)) if stop_after else steps,
    )


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
    if length + per_step >= _MAX_SAMPLES:
        raise ConfigError(
            f"schedule.length={text!r} is {length} samples; at most {_MAX_SAMPLES} can be counted"
        )
    return length


def _schedule(config: Config, length: int, *, per_step: int, per_epoch: int) -> Schedule:
    chosen = config.schedule

    def at(key: str, text: str) -> int:
        return durations.samples(
            text, f"schedule.{key}", per_step=per_step, per_epoch=per_epoch, length=length
        )

    return Schedule(
        peak=peak_rate(
            peak=chosen.peak, per_256=chosen.per_256, batch=per_step, scaling=chosen.scaling
        ),
        start=chosen.warmup_start,
        warmup=at("warmup", chosen.warmup),
        decay_end=at("decay_end", chosen.decay_end),
        decay=chosen.decay,
        power=chosen.power,
        end=chosen.end,
        steps=tuple(at("steps", text) for text in chosen.steps),
        factor=chosen.factor,
    )


def _check_ranges(config: Config) -> None:
    """Each number on its own."""
    for key, value, field in options(config):
        within = field.metadata["within"]
        if within is None or isinstance(value, str):
            continue
        if (
            value < 0
            or (value == 0 and "above 0" in within)
            or (value >= 1 and "below 1" in within)
        ):
            raise ConfigError(f"{key}={value} must be {within}")
    if config.run.seed >= _MAX_SEED:
        raise ConfigError(f"run.seed={config.run.seed} must be below {_MAX_SEED}")


def _check_model(config: Config, facts: Facts) -> None:
    height, width, _ = facts.image_shape
    if config.model.stem == "space_to_depth" and (height % 2 or width % 2):
        raise ConfigError(
            f"model.stem=space_to_depth needs even sides, the images have {height}×{width} pixels; "
            "use model.stem=conv7 or another data.image_size"
        )


def _check_batch(config: Config, facts: Facts) -> None:
    workers, images = config.batch.workers, config.batch.images_per_worker
    examples = facts.train_examples
    may_repeat = config.data.repeat or config.data.epoch_end == "repeat"
    if workers * images > examples and not may_repeat:
        raise ConfigError(
            f"a global batch of {workers * images} ({workers} workers × {images} images) exceeds "
            f"the {examples} training examples; "
            + (
                f"use batch.workers={examples // images} or fewer, or "
                if examples >= images
                else ""
            )
            + "set data.repeat=true to repeat examples within a batch"
        )
    geometry.check_workers(workers, facts.devices)
    if facts.devices % facts.processes:
        raise ConfigError(
            f"{facts.devices} devices are not shared evenly by {facts.processes} processes; "
            "give each process as many devices"
        )
