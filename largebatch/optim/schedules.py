"""The learning rate as a function of the sample position; plain Python floats, no arrays."""

import dataclasses
import math
import typing
from typing import Literal

from largebatch.errors import ConfigError, did_you_mean

Decay = Literal["polynomial", "linear", "cosine", "step", "constant"]
_SMOOTH = ("polynomial", "linear", "cosine")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a decay. Positions are in samples.

    With r = (decay_end − position) / (decay_end − warmup), the part of the decay still to come, the
    learning rate after the warm-up is end + f·(peak − end), where

        polynomial    f = r^power
        linear        f = r
        cosine        f = (1 + cos(π·(1 − r))) / 2

    and `end` from `decay_end` on. `step` multiplies by `factor` at each of `steps`, the sample at
    that position included; `constant` stays at the peak. Both ignore `power` and require `end` to
    be 0, its default: a floor that is silently not used would mislead. Their `decay_end` only says
    where the schedule is printed to end.

    Raises:
        ConfigError: A field out of range, or fields that contradict each other. Messages call the
            fields by the names of the configuration, where `start` is `schedule.warmup_start`.
    """

    peak: float
    """Above 0."""
    warmup: int
    """Where the warm-up ends; 0: there is none."""
    decay_end: int
    """Where the decay ends; after the warm-up."""
    decay: Decay
    start: float = 0.0
    """Learning rate at sample 0 of the warm-up; at most the peak, and 0 if there is no warm-up."""
    power: float = 2.0
    """Of the polynomial; above 0."""
    end: float = 0.0
    """Learning rate at `decay_end` and beyond; at most the peak."""
    steps: tuple[int, ...] = ()
    """Of `step`: where the drops are, ascending, between `warmup` and `decay_end`; else empty."""
    factor: float = 0.1
    """Of `step`: between 0 and 1."""

    def __post_init__(self) -> None:
        for name, value in {
            "peak": self.peak,
            "warmup_start": self.start,
            "warmup": self.warmup,
            "decay_end": self.decay_end,
            "power": self.power,
            "end": self.end,
            "factor": self.factor,
        }.items():
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"schedule.{name}={value} must be finite and not negative")
        if self.decay not in typing.get_args(Decay):
            hint = did_you_mean(self.decay, typing.get_args(Decay))
            raise ConfigError(f"schedule.decay={self.decay!r} is unknown; {hint}")
        self._check_rates()
        self._check_positions()

    def _check_rates(self) -> None:
        if self.peak == 0:
            raise ConfigError("schedule.peak=0 trains nothing; give a learning rate above 0")
        for name, value in {"warmup_start": self.start, "end": self.end}.items():
            if value > self.peak:
                raise ConfigError(
                    f"schedule.{name}={value:g} is above schedule.peak={self.peak:g}; lower it"
                )
        if self.power == 0:
            raise ConfigError(
                "schedule.power=0 never decays; give a power above 0 or decay=constant"
            )
        if not 0 < self.factor < 1:
            raise ConfigError(f"schedule.factor={self.factor:g} must be above 0 and below 1")
        if self.end and self.decay not in _SMOOTH:
            raise ConfigError(
                f"schedule.end={self.end:g} has no meaning for schedule.decay={self.decay}; "
                f"set it to 0 or decay to one of {', '.join(_SMOOTH)}"
            )
        if self.start and not self.warmup:
            raise ConfigError(
                f"schedule.warmup_start={self.start:g} has no meaning for schedule.warmup=0; "
                "set it to 0 or give a warm-up"
            )

    def _check_positions(self) -> None:
        if self.warmup >= self.decay_end:
            raise ConfigError(
                f"schedule.warmup={self.warmup} samples must end before "
                f"schedule.decay_end={self.decay_end}; shorten it or train longer"
            )
        if bool(self.steps) != (self.decay == "step"):
            raise ConfigError(
                f"schedule.steps={self.steps} does not fit schedule.decay={self.decay}; "
                "give drops with decay=step, and only there"
            )
        if any(after <= before for before, after in zip(self.steps, self.steps[1:], strict=False)):
            raise ConfigError(f"schedule.steps={self.steps} samples must ascend; sort them")
        for position in self.steps:
            if not self.warmup < position < self.decay_end:
                raise ConfigError(
                    f"schedule.steps: the drop at {position} samples must lie between "
                    f"schedule.warmup={self.warmup} and schedule.decay_end={self.decay_end}; "
                    "move it"
                )

    def __call__(self, position: int) -> float:
        """The learning rate of a step whose first sample is number `position`, from 0."""
        if position < self.warmup:
            return _between(self.start, self.peak, position / self.warmup)
        if self.decay == "constant":
            return self.peak
        if self.decay == "step":
            return self.peak * self.factor ** sum(position >= drop for drop in self.steps)
        if position >= self.decay_end:
            return self.end
        left = (self.decay_end - position) / (self.decay_end - self.warmup)
        if self.decay == "polynomial":
            left **= self.power
        elif self.decay == "cosine":
            left = (1 + math.cos(math.pi * (1 - left))) / 2
        return _between(self.end, self.peak, left)

    def milestones(self) -> tuple[tuple[str, int, float], ...]:
        """(name, position in samples, learning rate) of the points worth printing, in order."""
        points = [("start", 0)]
        if self.warmup:
            points.append(("end of warm-up", self.warmup))
        if self.decay in _SMOOTH:
            points.append(("middle of decay", (self.warmup + self.decay_end) // 2))
        points += [(f"drop {i}", position) for i, position in enumerate(self.steps, start=1)]
        points.append(("end", self.decay_end))
        return tuple((name, position, self(position)) for name, position in points)


def peak_rate(
    *, peak: float, per_256: float, batch: int, scaling: Literal["linear", "sqrt"]
) -> float:
    """The peak learning rate, given as such or scaled to the global batch.

    Args:
        peak: The rate itself, or 0.
        per_256: The rate for a batch of 256 images, or 0.
        batch: Images of the global batch.
        scaling: `linear`: per_256 · batch / 256 (Goyal et al. 2017, arXiv 1706.02677, section 2.1);
            `sqrt`: per_256 · √(batch / 256) (Krizhevsky 2014, arXiv 1404.5997).

    Raises:
        ConfigError: Not exactly one of `peak` and `per_256` is given, or it is negative.
    """
    if (peak == 0) == (per_256 == 0):
        which = "both are 0" if peak == 0 else "both are given"
        raise ConfigError(
            f"schedule.peak={peak:g} and schedule.per_256={per_256:g}: {which}; give exactly one"
        )
    for name, value in {"peak": peak, "per_256": per_256}.items():
        if value < 0:
            raise ConfigError(f"schedule.{name}={value:g} must be above 0")
    if peak:
        return peak
    ratio = batch / 256
    return per_256 * {"linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]


def _between(low: float, high: float, share: float) -> float:
    """Linear; exactly `high` at share 1, which low + share·(high − low) can miss by rounding."""
    return (1 - share) * low + share * high
