"""What a configuration must satisfy before anything is computed from it."""

from largebatch.config import geometry
from largebatch.config.facts import Facts
from largebatch.config.models import DEPTHS, MODELS
from largebatch.config.options import options
from largebatch.config.schema import Config
from largebatch.config.sections.model import RESNET_OPTIONS
from largebatch.config.stages import KEY, Stage
from largebatch.config.trackers import TRACKERS
from largebatch.errors import ConfigError

MAX_SAMPLES = 2**31
"""So that a sample position fits any integer on a device."""
_MAX_SEED = 2**31  # it travels to the devices as int32


def check_ranges(config: Config) -> None:
    """Refuse a number out of range, each on its own.

    Raises:
      ConfigError: with the option and its range.
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
            raise ConfigError(f"{key}={value} must be {within}")
    _check_name(config)
    for name in config.run.trackers:
        TRACKERS.check(name)
    if config.run.seed >= _MAX_SEED:
        raise ConfigError(f"run.seed={config.run.seed} must be below {_MAX_SEED}")


def _check_name(config: Config) -> None:
    name = config.model.name
    if name in DEPTHS:
        return
    MODELS.check(name)
    unfit = [(key, value, field.default) for key, value, field in options(config)]
    unfit = [each for each in unfit if each[0] in RESNET_OPTIONS and each[1] != each[2]]
    if unfit:
        raise ConfigError(
            f"{', '.join(f'{key}={value}' for key, value, _ in unfit)}: for ResNets only, and "
            f"model.name={name} is another network; use "
            + " ".join(f"--config.{key}={usual}" for key, _, usual in unfit)
        )


def check_model(config: Config, facts: Facts) -> None:
    """Refuse a stem that the images do not suit.

    Raises:
      ConfigError: with their size.
    """
    height, width, _ = facts.image_shape
    if config.model.stem == "space_to_depth" and (height % 2 or width % 2):
        raise ConfigError(
            f"model.stem=space_to_depth needs even sides, the images have {height}×{width} pixels; "
            "use model.stem=conv7 or another data.image_size"
        )


def check_batch(config: Config, facts: Facts) -> None:
    """Refuse a batch that data, devices or processes cannot make up.

    Raises:
      ConfigError: with the numbers and the nearest that work.
    """
    workers, images = config.batch.workers, config.batch.images_per_worker
    batch = config.batch.images
    examples = facts.train_examples
    if batch >= MAX_SAMPLES:
        raise ConfigError(
            f"a global batch of {batch:,} (batch.workers={workers} × batch.images_per_worker="
            f"{images}) is above the {MAX_SAMPLES:,} samples that can be counted; lower one of them"
        )
    may_repeat = config.data.repeat or config.data.epoch_end == "repeat"
    if batch > examples and not may_repeat:
        raise ConfigError(
            f"a global batch of {batch:,} ({workers:,} workers × {images:,} images) exceeds "
            f"the {examples:,} training examples; "
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


def check_deadline(config: Config, *, members: int) -> None:
    """Refuse a deadline where steps are repeated, or devices need each other for microbatches.

    Args:
      config: of a stage.
      members: devices that share BatchNorm statistics.

    Raises:
      ConfigError: with the options.
    """
    if config.batch.deadline_s and config.health.replay_every:
        raise ConfigError(
            f"health.replay_every={config.health.replay_every!r} computes a step twice, which "
            f"batch.deadline_s={config.batch.deadline_s:g} may cut short differently; use one"
        )
    if config.batch.deadline_s and members > 1:
        raise ConfigError(
            f"batch.deadline_s={config.batch.deadline_s:g} lets processes leave out microbatches "
            f"of which {members} devices share BatchNorm statistics (norm.span="
            f"{config.norm.span}); use a smaller norm.span or batch.deadline_s=0"
        )


def check_stages(stages: tuple[Stage, ...]) -> None:
    """Refuse durations whose meaning would change from stage to stage.

    Raises:
      ConfigError: with the option.
    """
    batches = {s.config.batch.images for s in stages}
    if len(batches) == 1:
        return
    first = stages[0].config
    if first.data.epoch_end != "continue":
        raise ConfigError(
            f"data.epoch_end={first.data.epoch_end} has no meaning where {KEY} changes the global "
            f"batch ({', '.join(map(str, sorted(batches)))}); use continue"
        )
    for key, value, _ in options(first):
        if key.startswith("schedule.") and "step" in str(value) and key != "schedule.decay":
            raise ConfigError(
                f"{key}={value!r} is in steps, whose size {KEY} changes "
                f"({', '.join(map(str, sorted(batches)))} images); give epochs, samples or a share"
            )
