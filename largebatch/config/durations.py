"""Durations in samples, steps, epochs or percent of the training; the internal unit is samples."""

import re
from collections.abc import Mapping
from fractions import Fraction

from largebatch.errors import ConfigError, shown

_NUMBER = r"[0-9]+(?:_[0-9]+)*"
# At most 30 characters: more than any training needs, and few enough for exact arithmetic.
_SHORT = r"(?<![0-9_.])(?=[0-9_.]{1,30}(?![0-9_.]))"
_FORM = re.compile(rf"{_SHORT}({_NUMBER}(?:\.[0-9]+)?)\s*(samples?|steps?|epochs?|%)")
_COUNTED_IN_STEPS = ("run.", "health.")  # sections whose plain numbers are steps


def samples(
    text: str, key: str, *, per_step: int, per_epoch: int, length: int | None = None
) -> int:
    """Convert a duration such as '5 epochs', '540 steps', '1_000_000 samples' or '40 %' to samples.

    A number without a unit is steps in the sections ``run`` and ``health``; in a schedule, where it
    could mean epochs as well, it is an error.

    Args:
      text: the duration.
      key: the option that has this value, for messages.
      per_step: samples of a step.
      per_epoch: samples of an epoch (the training set).
      length: samples of the whole training, which '%' refers to; None if '%' is not allowed.

    Returns:
      The number of samples, rounded to the nearest integer.

    Raises:
      ConfigError: the text is not a duration.
    """
    plain = text.strip()
    if re.fullmatch(_SHORT + _NUMBER, plain):
        if not key.startswith(_COUNTED_IN_STEPS):
            raise ConfigError(
                f"{key}={shown(text)}: expected a duration with its unit; use '{plain} epochs' or "
                f"'{plain} steps'"
            )
        plain = f"{plain} steps"
    match = _FORM.fullmatch(plain)
    if match is None:
        raise ConfigError(
            f"{key}={shown(text)}: expected a duration; use '5 epochs', '540 steps', "
            "'1000000 samples' or '40 %'"
        )
    amount, unit = _parts(match)
    if unit == "%":
        if length is None:
            raise ConfigError(f"{key}={text!r} cannot be in percent; use samples, steps or epochs")
        return round(amount * length / 100)
    return round(amount * {"sample": 1, "step": per_step, "epoch": per_epoch}[unit])


def _parts(match: re.Match) -> tuple[Fraction, str]:
    """Return the amount and the unit of a duration.

    The amount is exact: 0.1 epochs of 1,281,167 must not depend on binary rounding.
    """
    return Fraction(match[1].replace("_", "")), match[2].rstrip("s")


def absolute(text: str) -> tuple[Fraction, str] | None:
    """Return the amount and the unit (sample, step or epoch) of a duration.

    None: the text is not a duration, or is a share of the training.
    """
    match = _FORM.fullmatch(text.strip())
    return None if match is None or match[2] == "%" else _parts(match)


def rescaled(text: str, changes: Mapping[str, tuple[float, str]], digits: int = 17) -> str:
    """Multiply the durations in a text by factors.

    Args:
      text: one or more durations, with any text around.
      changes: factor and new unit by unit (sample, step, epoch); other durations do not change.
      digits: significant digits of the result, of which at most nine are decimals.
    """

    def one(match: re.Match) -> str:
        amount, unit = _parts(match)
        factor, new = changes.get(unit, (1, unit))
        if (factor, new) == (1, unit):
            return match[0]
        scaled = float(f"{float(amount) * factor:.{digits}g}")
        number = f"{scaled:.9f}".rstrip("0").rstrip(".") or "0"
        return f"{number} {new if new == '%' else f'{new}s'}"

    return _FORM.sub(one, text)


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
