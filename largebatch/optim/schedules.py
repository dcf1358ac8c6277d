"""Learning rate schedules by sample position, in Python floats."""

import dataclasses
import math
import typing
from typing import Literal

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.shapes import (
    SMOOTH,
    Warmup,
    between,
    falling,
    held,
    joined,
    rising,
)

Decay = Literal["polynomial", "linear", "cosine", "pieces", "lines", "constant"]
Points = tuple[tuple[int, float], ...]
"""(position in samples, multiple of the peak), ascending."""

_OF_POINTS = ("pieces", "lines")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A warm-up followed by a decay. Positions are in samples.

    The warm-up increases from `start` to the peak with the shape `shapes.rising`. After the
    warm-up, with r = (decay_end − position) / (decay_end − warmup), the remaining share of the
    decay, the learning rate is

        polynomial, linear, cosine    end + f·(peak − end), with f(r) from `shapes.falling`
        pieces                        a multiple of the peak, constant from each of `points` to the
                                      next; the peak before the first point
        lines                         linear interpolation from the peak at `warmup` through all
                                      `points`
        constant                      the peak

    The rate stays constant after `decay_end`. `pieces`, `lines` and `constant` ignore `end` and
    therefore require its default 0. For them, `decay_end` is only the end of the printed schedule.
    The sample at a point already has the new rate.

    Raises:
        ConfigError: A field is out of range, or fields contradict each other. Messages use the
            option names, such as `schedule.warmup_start` for `start`.
    """

    peak: float
    """Peak learning rate, above 0."""
    warmup: int
    """End of the warm-up; 0: no warm-up."""
    decay_end: int
    """End of the decay, after the warm-up."""
    decay: Decay
    start: float = 0.0
    """Learning rate at sample 0 of the warm-up; at most the peak, and 0 without warm-up."""
    power: float = 2.0
    """Exponent of `polynomial`, above 0."""
    end: float = 0.0
    """Learning rate at and after `decay_end`; at most the peak."""
    warmup_shape: Warmup = "linear"
    points: Points = ()
    """Points of `pieces` and `lines`, not before `warmup`, multiples of 0 to 1; otherwise empty."""

    def __post_init__(self) -> None:
        for name, value in {
            "peak": self.peak,
            "warmup_start": self.start,
            "warmup": self.warmup,
            "decay_end": self.decay_end,
            "power": self.power,
            "end": self.end,
        }.items():
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"schedule.{name}={value} must be finite and not negative")
        for name, value, words in (
            ("decay", self.decay, typing.get_args(Decay)),
            ("warmup_shape", self.warmup_shape, typing.get_args(Warmup)),
        ):
            if value not in words:
                hint = did_you_mean(value, words)
                raise ConfigError(f"schedule.{name}={value!r} is unknown; {hint}")
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
                "schedule.power=0 gives no decay; use a power above 0 or schedule.decay=constant"
            )
        if self.end and self.decay not in SMOOTH:
            raise ConfigError(
                f"schedule.end={self.end:g} has no effect with schedule.decay={self.decay}; use "
                f"schedule.end=0, or schedule.decay={' or '.join(SMOOTH)}"
            )
        if self.start and not self.warmup:
            raise ConfigError(
                f"schedule.warmup_start={self.start:g} has no effect without a warm-up; use "
                "schedule.warmup_start=0 or a schedule.warmup above 0"
            )

    def _check_positions(self) -> None:
        if self.warmup >= self.decay_end:
            raise ConfigError(
                f"schedule.warmup={self.warmup} samples must end before "
                f"schedule.decay_end={self.decay_end}; use a shorter warm-up or a longer training"
            )
        if bool(self.points) != (self.decay in _OF_POINTS):
            raise ConfigError(
                f"schedule.points={self.points} does not fit schedule.decay={self.decay}; set "
                f"points if and only if decay={' or '.join(_OF_POINTS)}"
            )
        places = [position for position, _ in self.points]
        if places != sorted(set(places)):
            raise ConfigError(f"schedule.points={places} samples must ascend; sort them")
        for position, multiple in self.points:
            # A point at the end of the warm-up would make the lines jump there.
            least = self.warmup + (self.decay == "lines" and self.warmup > 0)
            if position < least:
                raise ConfigError(
                    f"schedule.points: the point at {position} samples must not lie before "
                    f"{least} samples (schedule.warmup={self.warmup}); move it"
                )
            if not 0 <= multiple <= 1:
                raise ConfigError(
                    f"schedule.points: expected a multiple of the peak from 0 to 1, got "
                    f"{multiple:g} at {position} samples; use a higher schedule.peak"
                )

    def __call__(self, position: int) -> float:
        """Return the learning rate of a step that begins at sample `position`, from 0."""
        if position < self.warmup:
            return between(self.start, self.peak, self._risen(position))
        if self.decay == "constant":
            return self.peak
        if self.decay in SMOOTH:
            return between(self.end, self.peak, self._fallen(position))
        return self.peak * self._multiple(position)

    def share(self, position: int) -> float:
        """Return the relative height of the learning rate, from 0 to 1 at the peak.

        In the warm-up and the smooth decays, 0 is the lowest rate of this part, `start` or `end`.
        Otherwise, 0 is a learning rate of 0.
        """
        if position < self.warmup:
            return self._risen(position)
        return self._fallen(position) if self.decay in SMOOTH else self(position) / self.peak

    def warmed(self, position: int) -> float:
        """Return the learning rate relative to the end of the warm-up; 1 after the warm-up."""
        return self(position) / self.peak if position < self.warmup else 1.0

    def milestones(self) -> tuple[tuple[str, int, float], ...]:
        """Return (name, position in samples, learning rate) of the points to print, in order."""
        points = [("start", 0)]
        if self.warmup:
            points.append(("end of warm-up", self.warmup))
        if self.decay in SMOOTH:
            points.append(("middle of decay", (self.warmup + self.decay_end) // 2))
        inside = (p for p, _ in self.points if self.warmup < p < self.decay_end)
        points += [(f"point {i}", position) for i, position in enumerate(inside, start=1)]
        points.append(("end", self.decay_end))
        return tuple((name, position, self(position)) for name, position in points)

    def _risen(self, position: int) -> float:
        return rising(self.warmup_shape, position / self.warmup)

    def _fallen(self, position: int) -> float:
        if position >= self.decay_end:
            return 0.0
        left = (self.decay_end - position) / (self.decay_end - self.warmup)
        return falling(self.decay, left, self.power)

    def _multiple(self, position: int) -> float:
        """Return the multiple of the peak for `pieces` and `lines`."""
        if self.decay == "pieces":
            return held(self.points, position, before=1.0)
        first = () if self.points[0][0] == self.warmup else ((self.warmup, 1.0),)
        return joined((*first, *self.points), position)


def peak_rate(*, peak: float, per_256: float, batch: int) -> float:
    """Return the peak learning rate, either given or scaled to the global batch.

    Args:
        peak: Peak learning rate, or 0.
        per_256: Peak learning rate for a batch of 256 images, or 0; it is scaled in proportion to
            the batch (Goyal et al. 2017, arXiv 1706.02677, section 2.1).
        batch: Global batch size.

    Raises:
        ConfigError: Not exactly one of `peak` and `per_256` is given, or it is negative.
    """
    if (peak == 0) == (per_256 == 0):
        which = "both are 0" if peak == 0 else "both are given"
        raise ConfigError(
            f"schedule.peak={peak:g} and schedule.per_256={per_256:g}: {which}; set exactly one"
        )
    for name, value in {"peak": peak, "per_256": per_256}.items():
        if value < 0:
            raise ConfigError(f"schedule.{name}={value:g} must be above 0")
    return peak or per_256 * (batch / 256)
