"""Hyperparameters of each step, as functions of the sample position."""

import dataclasses
import math
from typing import Any, NamedTuple

from largebatch.errors import ConfigError
from largebatch.optim.schedules import Schedule
from largebatch.optim.shapes import between


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
            momentum = between(momentum, self.momentum_at_peak, near)
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
