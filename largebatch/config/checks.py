"""Checks of a configuration before anything is computed from it.

Also which microbatches and spans suit the workers and the devices.
"""

from collections.abc import Sequence

from largebatch.config.facts import Facts
from largebatch.config.registries import MODELS, TRACKERS
from largebatch.config.schema import Config, options
from largebatch.config.stages import KEY, StageConfig
from largebatch.errors import ConfigError, counted
from largebatch.registry import check

MAX_SAMPLES = 2**31
"""Sample positions must fit into int32 on devices."""
_MAX_SEED = 2**31  # the seed is int32 on devices


def check_ranges(config: Config) -> None:
    """Check each option separately: ranges of numbers, and registered names.

    Raises:
      ConfigError: a value is out of range, or a name is unknown.
    """
    for key, value, field in options(config):
        within = field.metadata["within"]
        if within is None or isinstance(value, str):
            continue
        if (
            value < 0
            or (value == 0 and "above 0" in within)
            or (value >= 1 and "below 1" in within)
        ):
            raise ConfigError(f"{key}={value}: expected a number {within}")
    check(config.model.name, MODELS, "model.name", own="package.module:factory")
    for name in config.run.trackers:
        check(name, TRACKERS, "run.trackers")
    if config.run.seed >= _MAX_SEED:
        raise ConfigError(f"run.seed={config.run.seed}: expected a number below {_MAX_SEED}")


def check_stage(config: Config, facts: Facts) -> None:
    """Check that dataset, devices and processes suit the batch and the images of a stage.

    Args:
      config: configuration of the stage.
      facts: facts with the image size of the stage.

    Raises:
      ConfigError: they do not; the message has the nearest valid values.
    """
    workers, images = config.batch.workers, config.batch.images_per_worker
    if (batch := config.batch.images) >= MAX_SAMPLES:
        raise ConfigError(
            f"batch.workers={workers} × batch.images_per_worker={images}: expected fewer than "
            f"{MAX_SAMPLES:,} images in the global batch, got {batch:,}; lower one of the two"
        )
    check_workers(workers, facts.devices)
    if facts.devices % facts.processes:
        raise ConfigError(
            f"{facts.processes} processes have {facts.devices} devices in total; use the same "
            "number of devices for each process"
        )


def check_pairs(config: Config, microbatch: int, first_sample: int) -> None:
    """Check that each device has both images of every pair that is mixed.

    Args:
      config: configuration of a stage.
      microbatch: number of workers that a device computes at a time.
      first_sample: number of samples before the stage.

    Raises:
      ConfigError: it does not.
    """
    if not config.augment.mixes:
        return
    images = config.batch.images_per_worker
    if microbatch * images % 2:
        raise ConfigError(
            "augment.mixup, augment.cutmix: expected an even number of images in the microbatch of "
            f"a device, got batch.microbatch={microbatch} × batch.images_per_worker={images}; use "
            f"batch.images_per_worker={images + 1}"
        )
    if first_sample % 2:
        raise ConfigError(
            f"{KEY}: expected a stage with augment.mixup or augment.cutmix to begin at an even "
            f"sample position, got {first_sample:,}; use an even global batch before it"
        )


def check_deadline(config: Config, *, members: int) -> None:
    """Check that ``batch.deadline_s`` is compatible with step replay and shared statistics.

    Args:
      config: configuration of a stage.
      members: number of devices that share BatchNorm statistics.

    Raises:
      ConfigError: the combination is impossible.
    """
    if config.batch.deadline_s and config.health.replay_every:
        raise ConfigError(
            f"health.replay_every={config.health.replay_every!r} repeats steps, but "
            f"batch.deadline_s={config.batch.deadline_s:g} can shorten a step and its repetition "
            "differently; use only one of them"
        )
    if config.batch.deadline_s and members > 1:
        raise ConfigError(
            f"batch.deadline_s={config.batch.deadline_s:g} lets processes skip microbatches, but "
            f"{members} devices share the BatchNorm statistics of each microbatch (norm.span="
            f"{config.norm.span}); use a smaller norm.span or batch.deadline_s=0"
        )


def check_stages(stages: tuple[StageConfig, ...]) -> None:
    """Check that no option depends on the batch size if stages have different batch sizes.

    Raises:
      ConfigError: an option does.
    """
    batches = {s.config.batch.images for s in stages}
    if len(batches) == 1:
        return
    first = stages[0].config
    if first.data.epoch_end != "continue":
        raise ConfigError(
            f"data.epoch_end={first.data.epoch_end} is undefined if {KEY} changes the global "
            f"batch ({', '.join(map(str, sorted(batches)))}); use data.epoch_end=continue",
            unused=("data.epoch_end",),
        )
    for key, value, _ in options(first):
        if key.startswith("schedule.") and "step" in str(value) and key != "schedule.decay":
            raise ConfigError(
                f"{key}={value!r} is in steps, but {KEY} changes the images of a step "
                f"({', '.join(map(str, sorted(batches)))}); use epochs, samples or percent"
            )


# ---- W workers on D devices, in microbatches of m workers and spans of g workers
#
# A span is part of one device's microbatch (g divides m), or whole microbatches of several devices
# (m divides g, and g/m divides D).


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def span_fits(microbatch: int, devices: int, span: int) -> bool:
    """Return whether microbatches of ``microbatch`` workers can form spans of ``span`` workers."""
    if span <= microbatch:
        return microbatch % span == 0
    return span % microbatch == 0 and devices % (span // microbatch) == 0


def possible_spans(workers: int, devices: int) -> list[int]:
    """Return the values of ``norm.span`` that suit W and D, ascending."""
    microbatches = divisors(workers // devices)
    return [g for g in divisors(workers) if any(span_fits(m, devices, g) for m in microbatches)]


def check_workers(workers: int, devices: int) -> None:
    """Check that the number of workers is a multiple of the number of devices.

    Raises:
      ConfigError: it is not; the message has the nearest valid numbers of workers and devices.
    """
    if workers % devices == 0:
        return
    below, above = workers // devices * devices, (workers // devices + 1) * devices
    fewer = max(d for d in divisors(workers) if d <= devices)
    raise ConfigError(
        f"batch.workers={workers} cannot be shared evenly by {counted(devices, 'device')}; use "
        f"{f'{below} or ' if below else ''}{above} workers, or {fewer} of the devices"
    )


def microbatch_choices(workers: int, devices: int, span: int) -> tuple[int, ...]:
    """Return the microbatch sizes (m, in workers) that suit W, D and the span, ascending.

    Raises:
      ConfigError: no size suits the span; the message has the nearest valid spans.
    """
    fitting = tuple(m for m in divisors(workers // devices) if span_fits(m, devices, span))
    if workers % span == 0 and fitting:
        return fitting
    raise ConfigError(
        f"norm.span={span} is impossible with {workers} workers on {counted(devices, 'device')}; "
        f"use {_nearest(span, possible_spans(workers, devices))}"
    )


def check_microbatch(
    chosen: int, workers: int, devices: int, span: int, fitting: Sequence[int]
) -> None:
    """Check that ``batch.microbatch`` is one of the valid sizes.

    Raises:
      ConfigError: it is not; the message has the nearest valid values.
    """
    if chosen not in fitting:
        raise ConfigError(
            f"batch.microbatch={chosen} is impossible with {workers} workers on "
            f"{counted(devices, 'device')} and norm.span={span}; use {_nearest(chosen, fitting)}",
            unused=("batch.microbatch",),
        )


def _nearest(value: int, valid: Sequence[int]) -> str:
    """Return the valid values next to an invalid one, the smaller and the larger."""
    below, above = [v for v in valid if v < value][-1:], [v for v in valid if v > value][:1]
    return " or ".join(map(str, below + above))
