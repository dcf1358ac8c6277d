"""The learning rate as a function of the sample position; plain Python floats, no arrays."""

import dataclasses
import math
import typing
from typing import Literal

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.shapes import (
    SMOOTH,
    Warmup,
    arctangent,
    between,
    falling,
    held,
    joined,
    rising,
)

Decay = Literal[
    "polynomial", "linear", "cosine", "step", "pieces", "lines", "arctangent", "constant"
]
Points = tuple[tuple[int, float], ...]
"""(position in samples, multiple of the peak), ascending."""

_WITH_END = (*SMOOTH, "arctangent")
# What belongs to one decay and is empty, or 0, for the others.
_OWN = {"steps": ("step",), "points": ("pieces", "lines"), "turn": ("arctangent",)}
_OWN |= {"width": ("arctangent",)}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A warm-up, then a decay. Positions are in samples.

    The warm-up goes from `start` to the peak, in a `warmup_shape` of `shapes.rising`. With
    r = (decay_end − position) / (decay_end − warmup), the part of the decay still to come, the
    learning rate after the warm-up is

        polynomial, linear, cosine    end + f·(peak − end), f of `shapes.falling`
        step                          the peak, multiplied by `factor` at each of `steps`
        pieces                        a multiple of the peak, from each of `points` to the next;
                                      the peak ahead of the first
        lines                         straight from the peak at `warmup` through all `points`
        arctangent                    f·peak, f of `shapes.arctangent`; as the warm-up ends at f
                                      there, the highest rate is a little below the peak. `rescaled`
                                      stretches f after the turn so that it comes to `end` at
                                      `decay_end`; otherwise `end` is a floor
        constant                      the peak

    The value at `decay_end` holds beyond it. `step`, `pieces`, `lines` and `constant` require `end`
    to be 0, its default: a floor that is silently not used would mislead. Their `decay_end` only
    says where the schedule is printed to end. The sample at a drop or point has its new rate.

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
    warmup_shape: Warmup = "linear"
    warmup_power: float = 2.0
    """Of the warm-up `power`; above 0."""
    points: Points = ()
    """Of `pieces` and `lines`: not before `warmup`, multiples of 0 to 1; else empty."""
    turn: int = 0
    """Of `arctangent`: where f turns, between `warmup` and `decay_end`; else 0."""
    width: int = 0
    """Of `arctangent`: samples from f = ¾ to the turn, without the cubic term; else 0."""
    cubic: int = 0
    """Of `arctangent`: samples at which the cubic term is 1; above 0."""
    rescaled: bool = False
    """Of `arctangent`: f reaches `end`."""

    def __post_init__(self) -> None:
        for name, value in {
            "peak": self.peak,
            "warmup_start": self.start,
            "warmup": self.warmup,
            "decay_end": self.decay_end,
            "power": self.power,
            "end": self.end,
            "factor": self.factor,
            "warmup_power": self.warmup_power,
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
                "schedule.power=0 never decays; give a power above 0 or decay=constant"
            )
        if self.warmup_power == 0:
            raise ConfigError("schedule.warmup_power=0 is no warm-up; give a power above 0")
        if not 0 < self.factor < 1:
            raise ConfigError(f"schedule.factor={self.factor:g} must be above 0 and below 1")
        if self.end and self.decay not in _WITH_END:
            raise ConfigError(
                f"schedule.end={self.end:g} has no meaning for schedule.decay={self.decay}; "
                f"set it to 0 or decay to one of {', '.join(_WITH_END)}"
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
        for name, decays in _OWN.items():
            value = getattr(self, name)
            if bool(value) != (self.decay in decays):
                raise ConfigError(
                    f"schedule.{name}={value} does not fit schedule.decay={self.decay}; give "
                    f"{name} for decay={' or '.join(decays)}, and only for it"
                )
        places = tuple(position for position, _ in self.points)
        for name, ascending in {"steps": self.steps, "points": places}.items():
            if list(ascending) != sorted(set(ascending)):
                raise ConfigError(f"schedule.{name}={ascending} samples must ascend; sort them")
        turn = (self.turn,) if self.decay == "arctangent" else ()
        for what, key, position in (
            *(("drop", "steps", drop) for drop in self.steps),
            *(("turn", "turn", at) for at in turn),
        ):
            if not self.warmup < position < self.decay_end:
                raise ConfigError(
                    f"schedule.{key}: the {what} at {position} samples must lie between "
                    f"schedule.warmup={self.warmup} and schedule.decay_end={self.decay_end}; "
                    "move it"
                )
        for position, multiple in self.points:
            # A line that starts anew where the warm-up ends would be a jump.
            least = self.warmup + (self.decay == "lines" and self.warmup > 0)
            if position < least:
                raise ConfigError(
                    f"schedule.points: the point at {position} samples must not lie before "
                    f"{least}, after schedule.warmup={self.warmup}; move it"
                )
            if not 0 <= multiple <= 1:
                raise ConfigError(
                    f"schedule.points: {multiple:g} at {position} samples is a multiple of the "
                    "peak, from 0 to 1; raise schedule.peak if it is higher"
                )
        if self.decay == "arctangent" and self.cubic <= 0:
            raise ConfigError(f"schedule: the cubic term at {self.cubic} samples must be above 0")

    def __call__(self, position: int) -> float:
        """The learning rate of a step whose first sample is number `position`, from 0."""
        if position < self.warmup:
            return between(self.start, self._top, self._risen(position))
        if self.decay == "constant":
            return self.peak
        if self.decay == "arctangent":
            return max(self.end, self.peak * self._turned(position))
        if self.decay in SMOOTH:
            return between(self.end, self.peak, self._fallen(position))
        return self.peak * self._multiple(position)

    def share(self, position: int) -> float:
        """How near the rate is to the peak, from 0 to 1, in its warm-up or decay.

        In the warm-up and the smooth decays 0 stands for the lowest rate of that part, `start` or
        `end`; else for a rate of 0.
        """
        if position < self.warmup:
            return self._risen(position)
        return self._fallen(position) if self.decay in SMOOTH else self(position) / self.peak

    def warmed(self, position: int) -> float:
        """The rate's warm-up alone, as a share of the rate it ends at; 1 from its end on."""
        return self(position) / self._top if position < self.warmup else 1.0

    def milestones(self) -> tuple[tuple[str, int, float], ...]:
        """(name, position in samples, learning rate) of the points worth printing, in order."""
        points = [("start", 0)]
        if self.warmup:
            points.append(("end of warm-up", self.warmup))
        if self.decay in SMOOTH:
            points.append(("middle of decay", (self.warmup + self.decay_end) // 2))
        if self.decay == "arctangent":
            points.append(("turn", self.turn))
        points += [(f"drop {i}", position) for i, position in enumerate(self.steps, start=1)]
        inside = (p for p, _ in self.points if self.warmup < p < self.decay_end)
        points += [(f"point {i}", position) for i, position in enumerate(inside, start=1)]
        points.append(("end", self.decay_end))
        return tuple((name, position, self(position)) for name, position in points)

    @property
    def _top(self) -> float:
        """Where the warm-up ends."""
        return self(self.warmup) if self.decay == "arctangent" else self.peak

    def _risen(self, position: int) -> float:
        return rising(self.warmup_shape, position / self.warmup, self.warmup_power)

    def _fallen(self, position: int) -> float:
        if position >= self.decay_end:
            return 0.0
        left = (self.decay_end - position) / (self.decay_end - self.warmup)
        return falling(self.decay, left, self.power)

    def _turned(self, position: int) -> float:
        """F of the arctangent."""

        def raw(at: int) -> float:
            return arctangent(at - self.turn, self.width, self.cubic)

        position = min(position, self.decay_end)
        found = raw(position)
        if self.rescaled and position >= self.turn:
            stretch = (0.5 - self.end / self.peak) / (0.5 - raw(self.decay_end))
            return 0.5 - (0.5 - found) * stretch
        return found

    def _multiple(self, position: int) -> float:
        """Of the peak, for the decays that jump or follow points."""
        if self.decay == "step":
            return self.factor ** sum(position >= drop for drop in self.steps)
        if self.decay == "pieces":
            return held(self.points, position, before=1.0)
        first = () if self.points[0][0] == self.warmup else ((self.warmup, 1.0),)
        return joined((*first, *self.points), position)


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
