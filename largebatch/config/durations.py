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


def _rounded(amount: Fraction) -> float:
    return float(f"{float(amount):.4g}")


def _written(amount: float, unit: str) -> str:
    number = f"{amount:.9f}".rstrip("0").rstrip(".") or "0"
    return f"{number} {unit}" if unit == "%" else f"{number} {unit}s"


def stretched(text: str, factor: float, in_epochs: Mapping[str, float]) -> str:
    """Multiply the durations in a text by a factor.

    Args:
      text: one or more durations, with any text around; '%' does not change.
      factor: the factor.
      in_epochs: epochs of a unit, for units that become epochs: ``sample`` or ``step``.
    """

    def one(match: re.Match) -> str:
        amount, unit = _parts(match)
        if unit == "%":
            return match[0]
        number = float(amount) * factor
        return _written(number * in_epochs.get(unit, 1), "epoch" if unit in in_epochs else unit)

    return _FORM.sub(one, text)


def shortened(
    text: str,
    lengths: tuple[str, str],
    steps: tuple[int, int],
    epochs: tuple[int, int] | None,
) -> str:
    """Shorten the durations in a text like a training, so that they keep their share of it.

    Args:
      text: one or more durations, with any text around; '%' keeps its share by itself.
      lengths: length of the training before and after.
      steps: samples of a step before and after.
      epochs: samples of an epoch before and after; None if they are unknown.

    Returns:
      The text with the same units and four digits. It does not change if the training is not
      shorter. If the samples of an epoch decide whether it is and are unknown, a duration in the
      unit of the length becomes percent.
    """
    found = [_FORM.fullmatch(length.strip()) for length in lengths]
    if not all(found) or any(match[2] == "%" for match in found):
        return text  # an error of schedule.length itself
    (length, of), (length_after, of_after) = map(_parts, found)
    sizes = {"sample": (1, 1), "step": steps, "epoch": epochs or (1, 1)}
    before, after = length * sizes[of][0], length_after * sizes[of_after][1]

    unknown = epochs is None and (of == "epoch") != (of_after == "epoch")

    def one(match: re.Match) -> str:
        amount, unit = _parts(match)
        if unit == "%":
            return match[0]
        if unknown:
            return _written(_rounded(100 * amount / length), "%") if unit == of else match[0]
        if not 0 < after < before:
            return match[0]
        here, there = sizes[unit]
        number = _rounded(amount * here / before * after / there)
        return match[0] if number == float(amount) else _written(number, unit)

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
