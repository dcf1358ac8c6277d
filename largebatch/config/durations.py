"""Durations in samples, steps, epochs or percent of the training; the internal unit is samples."""

import re
from fractions import Fraction

from largebatch.config.values import shown
from largebatch.errors import ConfigError

_FORM = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(samples?|steps?|epochs?|%)")
_DIGITS = 30  # more than any training needs


def samples(
    text: str, key: str, *, per_step: int, per_epoch: int, length: int | None = None
) -> int:
    """Convert a duration such as '5 epochs', '540 steps', '1_000_000 samples' or '40 %' to samples.

    Args:
      text: the duration.
      key: the option that has this value, for messages.
      per_step: samples of a step.
      per_epoch: samples of an epoch (the training set).
      length: samples of the whole training, which '%' refers to; None if '%' is not allowed.

    Returns:
      The number of samples, rounded to the nearest integer.

    Raises:
      ConfigError: the text is not a duration, or has too many digits.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{key}={shown(text)}: expected a duration; use '5 epochs', '540 steps', "
            "'1000000 samples' or '40 %'"
        )
    if len(match[1]) > _DIGITS:
        raise ConfigError(f"{key}={shown(text)}: expected at most {_DIGITS} digits; use fewer")
    # Exact arithmetic: 0.1 epochs of 1,281,167 must not depend on binary rounding.
    amount, unit = Fraction(match[1].replace("_", "")), match[2].rstrip("s")
    if unit == "%":
        if length is None:
            raise ConfigError(f"{key}={text!r} cannot be in percent; use samples, steps or epochs")
        return round(amount * length / 100)
    return round(amount * {"sample": 1, "step": per_step, "epoch": per_epoch}[unit])


def ratio(one: str, other: str) -> Fraction | None:
    """Return the ratio of two durations, or None if their units differ."""
    first, second = (_FORM.fullmatch(text.strip()) for text in (one, other))
    if first is None or second is None or first[2].rstrip("s") != second[2].rstrip("s"):
        return None
    amounts = [Fraction(match[1].replace("_", "")) for match in (first, second)]
    return amounts[0] / amounts[1] if amounts[1] else None


def times(text: str, factor: Fraction) -> str:
    """Multiply a duration; the result has the same unit and four digits."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    amount = float(f"{float(Fraction(match[1].replace('_', '')) * factor):.4g}")
    return f"{amount:.12g} {match[2]}"


def step_range(text: str, key: str, steps: int) -> tuple[int, int] | None:
    """Parse a range of steps such as '10:15', the first and the last; None for an empty text.

    Args:
      text: the range.
      key: the option that has this value, for messages.
      steps: number of steps of the whole training.

    Raises:
      ConfigError: the text is not a range, or the range exceeds the training.
    """
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text.strip())
    if match is None:
        raise ConfigError(f"{key}={shown(text)}: expected a range of steps; use '10:15'")
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= steps:
        raise ConfigError(
            f"{key}={text}: expected FIRST:LAST within the {steps} steps of the training; use "
            f"{max(1, min(10, steps - 1))}:{min(15, steps)}"
        )
    return first, last


def epoch_samples(examples: int, batch: int, end: str) -> int:
    """Return the number of samples of an epoch.

    Args:
      examples: number of training examples.
      batch: global batch size.
      end: handling of an incomplete last step: ``continue`` with the next epoch in the same batch,
        ``drop`` the remaining examples, or ``repeat`` examples to fill the batch.

    Returns:
      ``examples``, or the next multiple of ``batch`` below or above it.

    Raises:
      ConfigError: ``drop`` leaves no example.
    """
    if end == "continue":
        return examples
    if end == "repeat":
        return -(-examples // batch) * batch
    if examples < batch:
        raise ConfigError(
            f"data.epoch_end=drop: expected at least one global batch of {batch:,} in an epoch, "
            f"got {examples:,} examples; use continue or repeat"
        )
    return examples // batch * batch
