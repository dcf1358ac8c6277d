"""Durations written as samples, steps, epochs or a share of the training; samples inside."""

import re
from fractions import Fraction

from largebatch.config.values import shown
from largebatch.errors import ConfigError

_FORM = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(samples?|steps?|epochs?|%)")
_DIGITS = 30  # far more than any training has


def samples(
    text: str, key: str, *, per_step: int, per_epoch: int, length: int | None = None
) -> int:
    """The samples of a duration such as '5 epochs', '540 steps', '1_000_000 samples' or '40 %'.

    Args:
      text: the duration.
      key: the option it stands in, for messages.
      per_step: samples of a step.
      per_epoch: samples of an epoch (the training set).
      length: samples of the whole training, which '%' refers to; None where it may not be used.

    Returns:
      Whole samples, rounded to the nearest.

    Raises:
      ConfigError: the text is not a duration, or not one that can be counted.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{key}={shown(text)} is not a duration; write '5 epochs', '540 steps', "
            "'1000000 samples' or '40 %'"
        )
    if len(match[1]) > _DIGITS:
        raise ConfigError(
            f"{key}={shown(text)} has more than the {_DIGITS} digits that can be counted"
        )
    # Exact arithmetic: 0.1 epochs of 1,281,167 must not depend on binary rounding.
    amount, unit = Fraction(match[1].replace("_", "")), match[2].rstrip("s")
    if unit == "%":
        if length is None:
            raise ConfigError(f"{key}={text!r} cannot be a share; give samples, steps or epochs")
        return round(amount * length / 100)
    return round(amount * {"sample": 1, "step": per_step, "epoch": per_epoch}[unit])


def ratio(one: str, other: str) -> Fraction | None:
    """How many times one duration is another; None unless both have the same unit."""
    first, second = (_FORM.fullmatch(text.strip()) for text in (one, other))
    if first is None or second is None or first[2].rstrip("s") != second[2].rstrip("s"):
        return None
    amounts = [Fraction(match[1].replace("_", "")) for match in (first, second)]
    return amounts[0] / amounts[1] if amounts[1] else None


def times(text: str, factor: Fraction) -> str:
    """A duration multiplied, in its own unit, with four digits."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    amount = float(f"{float(Fraction(match[1].replace('_', '')) * factor):.4g}")
    return f"{amount:.12g} {match[2]}"


def step_range(text: str, key: str, steps: int) -> tuple[int, int] | None:
    """The first and the last step of a range such as '10:15'; None where the text is empty.

    Args:
      text: the range.
      key: the option it stands in, for messages.
      steps: of the whole training.

    Raises:
      ConfigError: the text is no range, or none within the training.
    """
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text.strip())
    if match is None:
        raise ConfigError(f"{key}={shown(text)} is not a range of steps; write '10:15'")
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= steps:
        raise ConfigError(
            f"{key}={text} does not lie in the {steps} steps of the training; write FIRST:LAST, "
            f"such as {max(1, min(10, steps - 1))}:{min(15, steps)}"
        )
    return first, last


def epoch_samples(examples: int, batch: int, end: str) -> int:
    """The samples that make an epoch.

    Args:
      examples: examples of the training split.
      batch: samples of a step.
      end: what happens where they are no whole number of steps: ``continue`` with the next epoch
        in the same batch, ``drop`` the rest, or ``repeat`` examples to fill the batch.

    Returns:
      ``examples``, or the next multiple of ``batch`` below or above it.

    Raises:
      ConfigError: nothing is left after dropping.
    """
    if end == "continue":
        return examples
    if end == "repeat":
        return -(-examples // batch) * batch
    if examples < batch:
        raise ConfigError(
            f"data.epoch_end=drop leaves nothing of {examples:,} examples at a global batch of "
            f"{batch:,}; use continue or repeat"
        )
    return examples // batch * batch
