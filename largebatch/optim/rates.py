"""What the host gives an update at each step, and how it follows from the sample position."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from largebatch.errors import ConfigError
from largebatch.optim.schedules import Schedule
from largebatch.optim.shapes import between

Decay = Literal["constant", "follow", "decoupled"]


class Rates(NamedTuple):
    """Numbers of one step that schedules decide; scalars, on the host Python floats."""

    learning_rate: Any
    weight_decay: Any = 0.0
    momentum: Any = 0.9
    sgd_share: Any = 1.0
    """Of an RMSprop–SGD blend: the share of SGD."""
    step: Any = 1.0
    """Number of this update, from 1; what bias corrections count."""
    peak_decay: Any = 0.0
    """The configured weight decay times the peak learning rate, both without schedule."""


@dataclasses.dataclass(frozen=True)
class Blend:
    """The share of SGD in a transition from RMSprop (Akiba et al. 2017, arXiv 1711.04325).

    ½·exp(2·(x − centre) / period) up to the centre, then ½ + (x − centre) / period, at most 1:
    value and slope are continuous, and 1 is reached half a period after the centre.
    """

    centre: int
    """In samples."""
    period: int
    """In samples, above 0."""

    def __post_init__(self) -> None:
        if self.period <= 0:
            raise ConfigError(f"schedule.blend_period={self.period} samples must be above 0")

    def __call__(self, position: int) -> float:
        """The share, from above 0 to 1, of a step whose first sample is number `position`."""
        x = (position - self.centre) / self.period
        return 0.5 * math.exp(2 * x) if x < 0 else min(1.0, 0.5 + x)


@dataclasses.dataclass(frozen=True)
class RateSchedule:
    """All rates as functions of the sample position."""

    learning_rate: Schedule
    weight_decay: float = 0.0
    """The coefficient L."""
    decay: Decay = "constant"
    """`constant`: L, added to the gradient. `follow`: the decay has a rate of its own, the peak
    times a linear warm-up over `decay_warmup` times the learning rate's decay, as in Fujitsu's
    submission to MLPerf v0.6; given to a rule that multiplies it by the learning rate, that is L
    times the ratio of the two warm-ups, and L after both. `decoupled`: L times the learning rate as
    a share of its peak, taken from the weights (Loshchilov & Hutter 2019, arXiv 1711.05101)."""
    decay_warmup: int = 0
    """Of `follow`, in samples."""
    momentum: float = 0.9
    momentum_at_peak: float | None = None
    """Momentum goes there as the learning rate goes to its peak, and back (Smith 2018, arXiv
    1803.09820); None: it is constant."""
    corrected: bool = False
    """Momentum is multiplied by the ratio of this step's learning rate to the last one's, so that a
    velocity that holds learning rates moves as if it held none (Goyal et al. 2017, arXiv
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
        """The rates of one step.

        Args:
            position: Number of its first sample, from 0.
            before: That of the step before it; None for the first step.
            step: Number of the update, from 1.
            scale: Factor of the learning rate, of this step.
            scale_before: The same, of the step before it.
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
            weight_decay=self._weight_decay(position, rate),
            momentum=momentum,
            sgd_share=self.blend(position) if self.blend else 1.0,
            step=step,
            peak_decay=self.learning_rate.peak * self.weight_decay,
        )

    def _weight_decay(self, position: int, rate: float) -> float:
        if self.decay == "decoupled":
            return self.weight_decay * rate / self.learning_rate.peak
        if self.decay == "constant":
            return self.weight_decay
        own = min(1.0, position / self.decay_warmup) if self.decay_warmup else 1.0
        warmed = self.learning_rate.warmed(position)
        # Where neither has begun, nothing moves.
        return self.weight_decay * (own / warmed if warmed else 1.0)
