"""Durations in samples, steps, epochs or percent of the training; the internal unit is samples."""

import re
from fractions import Fraction

from largebatch.errors import ConfigError, shown

_FORM = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(samples?|steps?|epochs?|%)")
_OF = " of "  # '5 epochs of 90 epochs'
_NUMBER = re.compile(r"[0-9]+(?:_[0-9]+)*")
_COUNTED_IN_STEPS = ("run.", "health.")  # sections whose plain numbers are steps
_DIGITS = 30  # more than any training needs


def samples(
    text: str, key: str, *, per_step: int, per_epoch: int, length: int | None = None
) -> int:
    """Convert a duration such as '5 epochs', '540 steps', '1_000_000 samples' or '40 %' to samples.

    '5 epochs of 90 epochs' is 5 epochs, or the same share of a training below 90 epochs. A number
    without a unit is steps in the sections ``run`` and ``health``; in a schedule, where it could
    mean epochs as well, it is an error.

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
    part, of, whole = text.partition(_OF)
    if of and length is not None:
        per = {"per_step": per_step, "per_epoch": per_epoch}
        most, base = (samples(each, key, **per) for each in (part, whole))
        return most if length >= base else round(Fraction(most * length, base))
    match = _FORM.fullmatch(text.strip())
    if match is None and _NUMBER.fullmatch(text.strip()):
        if not key.startswith(_COUNTED_IN_STEPS):
            raise ConfigError(
                f"{key}={shown(text)}: expected a duration with its unit; use "
                f"'{text.strip()} epochs' or '{text.strip()} steps'"
            )
        match = _FORM.fullmatch(f"{text.strip()} steps")
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
      shorter. If ``epochs`` decides whether it is and is unknown, a duration D becomes
      'D of LENGTH', which the plan resolves.
    """
    found = [_FORM.fullmatch(length.strip()) for length in lengths]
    if _OF in text or not all(found) or any(match[2] == "%" for match in found):
        return text  # '%' is an error of schedule.length itself
    sizes = {"sample": (1, 1), "step": steps, "epoch": epochs or (1, 1)}
    units = [match[2].rstrip("s") for match in found]

    def changed(match: re.Match) -> str:
        unit = match[2].rstrip("s")
        if unit == "%":
            return match[0]
        if epochs is None and (units[0] == "epoch") != (units[1] == "epoch"):
            return f"{match[0]}{_OF}{lengths[0]}"
        before, after = (
            Fraction(length[1].replace("_", "")) * sizes[each][index]
            for index, (length, each) in enumerate(zip(found, units, strict=True))
        )
        if not 0 < after < before:
            return match[0]
        share = Fraction(match[1].replace("_", "")) * sizes[unit][0] / before
        number = float(f"{float(share * after / sizes[unit][1]):.4g}")
        same = number == float(match[1].replace("_", ""))
        return match[0] if same else f"{number:.9f}".rstrip("0").rstrip(".") + f" {match[2]}"

    return _FORM.sub(changed, text)


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
