"""Schedules of the learning rate and of the other hyperparameters by sample position.

Positions and rates are Python numbers of the host.
"""

import bisect
import dataclasses
import math
import typing
from typing import Any, Literal, NamedTuple

from largebatch.errors import ConfigError, did_you_mean

Warmup = Literal["linear", "quadratic", "cosine"]
Decay = Literal["polynomial", "linear", "cosine", "pieces", "lines", "constant"]
Points = tuple[tuple[int, float], ...]
"""(position in samples, multiple of the peak), ascending."""

_SMOOTH = ("polynomial", "linear", "cosine")
_OF_POINTS = ("pieces", "lines")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A warm-up followed by a decay. Positions are in samples.

    After a share s of the warm-up, the learning rate is start + f·(peak − start), where f is

        linear, quadratic, cosine     s, s², (1 − cos(π·s)) / 2

    When the share r = (decay_end − position) / (decay_end − warmup) of the decay remains, it is

        polynomial, linear, cosine    end + f·(peak − end), where f is r^power, r,
                                      (1 + cos(π·(1 − r))) / 2
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
        if self.end and self.decay not in _SMOOTH:
            raise ConfigError(
                f"schedule.end={self.end:g} has no effect with schedule.decay={self.decay}; use "
                f"schedule.end=0, or schedule.decay={' or '.join(_SMOOTH)}"
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
            return _between(self.start, self.peak, self._risen(position))
        if self.decay in _SMOOTH:
            return _between(self.end, self.peak, self._fallen(position))
        return self.peak * self._multiple(position)

    def share(self, position: int) -> float:
        """Return the relative height of the learning rate, from 0 to 1 at the peak.

        In the warm-up and the smooth decays, 0 is the lowest rate of this part, `start` or `end`.
        Otherwise, 0 is a learning rate of 0.
        """
        if position < self.warmup:
            return self._risen(position)
        return self._fallen(position) if self.decay in _SMOOTH else self(position) / self.peak

    def warmed(self, position: int) -> float:
        """Return the learning rate relative to the end of the warm-up; 1 after the warm-up."""
        return self(position) / self.peak if position < self.warmup else 1.0

    def milestones(self) -> tuple[tuple[str, int, float], ...]:
        """Return (name, position in samples, learning rate) of the points to print, in order."""
        points = [("start", 0)]
        if self.warmup:
            points.append(("end of warm-up", self.warmup))
        if self.decay in _SMOOTH:
            points.append(("middle of decay", (self.warmup + self.decay_end) // 2))
        inside = (p for p, _ in self.points if self.warmup < p < self.decay_end)
        points += [(f"point {i}", position) for i, position in enumerate(inside, start=1)]
        points.append(("end", self.decay_end))
        return tuple((name, position, self(position)) for name, position in points)

    def _risen(self, position: int) -> float:
        """Return the relative height of the warm-up, 0 to 1."""
        share = position / self.warmup
        if self.warmup_shape == "quadratic":
            return share**2
        if self.warmup_shape == "cosine":
            return (1 - math.cos(math.pi * share)) / 2
        return share

    def _fallen(self, position: int) -> float:
        """Return the relative height of a smooth decay, 1 to 0."""
        if position >= self.decay_end:
            return 0.0
        left = (self.decay_end - position) / (self.decay_end - self.warmup)
        if self.decay == "polynomial":
            return left**self.power
        if self.decay == "cosine":
            return (1 + math.cos(math.pi * (1 - left))) / 2
        return left

    def _multiple(self, position: int) -> float:
        """Return the multiple of the peak for `pieces`, `lines` and `constant`."""
        points = self.points
        if not points or points[0][0] > self.warmup:
            points = ((self.warmup, 1.0), *points)
        after = bisect.bisect_right(points, position, key=lambda point: point[0])
        if self.decay != "lines" or after == len(points):
            return points[after - 1][1]
        (start, low), (stop, high) = points[after - 1 : after + 1]
        return _between(low, high, (position - start) / (stop - start))


def _between(low: float, high: float, share: float) -> float:
    """Interpolate linearly; exactly `high` at share 1, unlike low + share·(high − low)."""
    return (1 - share) * low + share * high


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


class Rates(NamedTuple):
    """Scheduled hyperparameters of one step; scalars, on the host Python floats."""

    learning_rate: Any
    weight_decay: Any = 0.0
    momentum: Any = 0.9
    sgd_share: Any = 1.0
    """Share of SGD in a blend of RMSprop and SGD."""
    step: Any = 1.0
    """Number of this update, from 1, for bias correction."""
    peak_decay: Any = 0.0
    """Configured weight decay times peak learning rate."""


@dataclasses.dataclass(frozen=True)
class Blend:
    """Share of SGD in a transition from RMSprop (Akiba et al. 2017, arXiv 1711.04325).

    It is ½·exp(2·(x − centre) / period) before the centre, then ½ + (x − centre) / period, at
    most 1. Value and slope are continuous. The share is 1 from half a period after the centre.
    """

    centre: int
    """Centre in samples."""
    period: int
    """Period in samples, above 0."""

    def __post_init__(self) -> None:
        if self.period <= 0:
            raise ConfigError(f"period: expected above 0, got {self.period} samples")

    def __call__(self, position: int) -> float:
        """Return the share, above 0 and at most 1, of a step that begins at `position`."""
        x = (position - self.centre) / self.period
        return 0.5 * math.exp(2 * x) if x < 0 else min(1.0, 0.5 + x)


@dataclasses.dataclass(frozen=True)
class RateSchedule:
    """Schedules of all hyperparameters by sample position."""

    learning_rate: Schedule
    weight_decay: float = 0.0
    """Coefficient L."""
    follows: bool = False
    """Weight decay has its own schedule: the peak times a linear warm-up from 0, as long as that of
    the learning rate, times the decay of the learning rate (Fujitsu, MLPerf v0.6). An update rule
    multiplies weight decay by the learning rate, so that its value is L times the ratio of the two
    warm-ups, and L after them."""
    momentum: float = 0.9
    momentum_at_peak: float | None = None
    """Momentum at the peak learning rate; between, it is linear in the learning rate (Smith 2018,
    arXiv 1803.09820); None: constant momentum."""
    corrected: bool = False
    """Multiply momentum by the ratio of this step's learning rate to that of the step before, so
    that velocities with learning rates inside behave as if outside (Goyal et al. 2017, arXiv
    1706.02677, section 3)."""
    blend: Blend | None = None

    def at(
        self,
        position: int,
        before: int | None,
        step: int,
        *,
        scale: float = 1.0,
        scale_before: float = 1.0,
    ) -> Rates:
        """Return the hyperparameters of one step.

        Args:
            position: Number of the step's first sample, from 0.
            before: Position of the step before; None for the first step.
            step: Number of the update, from 1.
            scale: Learning rate factor of this step.
            scale_before: Learning rate factor of the step before.
        """
        rate = scale * self.learning_rate(position)
        momentum = self.momentum
        if self.momentum_at_peak is not None:
            near = self.learning_rate.share(position)
            momentum = _between(momentum, self.momentum_at_peak, near)
        if self.corrected and before is not None:
            last = scale_before * self.learning_rate(before)
            momentum *= rate / last if last else 1.0
        return Rates(
            learning_rate=rate,
            weight_decay=self._weight_decay(position),
            momentum=momentum,
            sgd_share=self.blend(position) if self.blend else 1.0,
            step=step,
            peak_decay=self.learning_rate.peak * self.weight_decay,
        )

    def _weight_decay(self, position: int) -> float:
        warmup = self.learning_rate.warmup
        if not self.follows or position >= warmup:
            return self.weight_decay
        own, warmed = position / warmup, self.learning_rate.warmed(position)
        # At a learning rate of 0, weight decay has no effect.
        return self.weight_decay * (own / warmed if warmed else 1.0)
