"""Hyperparameters for any batch, interpolated between published ones.

The points are MLPerf's reference convergence points (ruleset 4.0.0) and Fujitsu's open submission.
Between two of them the logarithms of peak rate and of 1 − momentum, and warm-up and epochs
themselves, are linear in the logarithm of the batch; weight decay is that of the nearer point, as
MLPerf allows powers of two only. Leaving each inner point out measures the error.
"""

import bisect
import dataclasses
import math
from collections.abc import Sequence

from largebatch.errors import ConfigError

LEAST, MOST = 1_632, 131_072
LENGTH = 1.05
"""Published schedules are 3 to 6 % longer than the mean epochs of their runs (37 for 35.0, 58 for
56, 90 for 85.9), or every other run would end too early."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A published batch and the hyperparameters that trained at it to 75.9 %."""

    batch: int
    peak: float
    """Peak rate at a trust coefficient of 0.001."""
    warmup_epochs: float
    momentum: float
    weight_decay: float
    epochs: float
    """Mean to 75.9 %."""
    spread: float
    """Half the range of its runs, in epochs, or half the interval of their evaluations."""
    source: str
    recipe: str = ""
    """The recipe that repeats it; empty without one."""


_RCP = "MLPerf reference convergence point"
POINTS: tuple[Point, ...] = (
    Point(1_632, 7.4, 2, 0.9, 5e-5, 35.00, 2.0, _RCP, "mlperf_rcp_1632"),
    Point(3_264, 10.5, 2, 0.9, 5e-5, 35.20, 1.5, _RCP),
    Point(4_096, 10.0, 5, 0.9, 2e-4, 40.00, 1.5, _RCP),
    Point(8_192, 17.0, 5, 0.9, 2e-4, 42.00, 1.5, _RCP),
    Point(13_056, 12.8, 9, 0.9, 2.5e-5, 45.40, 1.0, _RCP),
    Point(32_768, 21.2, 16, 0.94, 2.5e-5, 56.00, 1.0, _RCP),
    Point(49_152, 19.405, 24, 0.951807, 1e-4, 68.00, 1.0, _RCP),
    Point(58_880, 23.246, 29, 0.951807, 1e-4, 79.90, 1.5, _RCP),
    Point(65_536, 24.699, 31, 0.951807, 1e-4, 84.50, 1.5, _RCP),
    Point(67_840, 24.699, 31, 0.951807, 1e-4, 85.86, 1.0, _RCP),
    # Its trust coefficient is 0.0025: for kernels a rate of 13.0 equals 32.5 at 0.001.
    Point(
        86_016,
        32.5,
        36,
        0.96,
        5e-5,
        90.00,
        2.0,
        "Fujitsu, MLPerf v0.6 open division: 13.0 at 0.0025",
        "fujitsu2019_mlperf06_86016",
    ),
)


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Hyperparameters for a batch."""

    batch: int
    kind: str
    """published, interpolated or extrapolated."""
    between: tuple[Point, ...]
    """The points of the interpolation."""
    peak: float
    warmup_epochs: float
    momentum: float
    weight_decay: float
    epochs: float
    """Predicted to 75.9 % top-1."""
    uncertainty: float
    """Two standard deviations of those epochs."""

    @property
    def length_epochs(self) -> float:
        """Length of the schedule."""
        return self.epochs * LENGTH


def propose(batch: int) -> Proposal:
    """Propose hyperparameters for a global batch, from `LEAST` to `MOST` images.

    Raises:
      ConfigError: the batch is outside this range.
    """
    if not LEAST <= batch <= MOST:
        raise ConfigError(f"--batch: expected {LEAST:,} to {MOST:,}, got {batch:,}")
    for point in POINTS:
        if point.batch == batch:
            return _proposal(batch, "published", (point,), 0.0, point.spread)
    place = bisect.bisect([point.batch for point in POINTS], batch)
    inside = 0 < place < len(POINTS)
    first = min(max(place - 1, 0), len(POINTS) - 2)
    pair = POINTS[first], POINTS[first + 1]
    share = math.log(batch / pair[0].batch) / math.log(pair[1].batch / pair[0].batch)
    spread = max(point.spread for point in pair)
    error = math.hypot(spread, 2 * deviation())
    if not inside:
        # The error grows with the distance from the nearer point, in spans of the last pair.
        error *= 1 + (share - 1 if share > 1 else -share)
    kind = "interpolated" if inside else "extrapolated"
    return _proposal(batch, kind, pair, share, error)


def deviation(points: Sequence[Point] = POINTS) -> float:
    """Return the RMS error, in epochs, of inner points predicted from their neighbours."""
    errors = []
    for before, left_out, after in zip(points, points[1:], points[2:], strict=False):
        share = math.log(left_out.batch / before.batch) / math.log(after.batch / before.batch)
        errors.append(_line(before.epochs, after.epochs, share) - left_out.epochs)
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def _proposal(
    batch: int, kind: str, pair: tuple[Point, ...], share: float, uncertainty: float
) -> Proposal:
    first, last = pair[0], pair[-1]
    nearer = first if share < 0.5 else last
    return Proposal(
        batch=batch,
        kind=kind,
        between=pair,
        peak=_power(first.peak, last.peak, share),
        warmup_epochs=_line(first.warmup_epochs, last.warmup_epochs, share),
        momentum=1 - _power(1 - first.momentum, 1 - last.momentum, share),
        weight_decay=nearer.weight_decay,
        epochs=_line(first.epochs, last.epochs, share),
        uncertainty=uncertainty,
    )


def _line(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


def _power(low: float, high: float, share: float) -> float:
    return low * (high / low) ** share


def workers_of(batch: int) -> tuple[int, int]:
    """Divide a batch into workers of as many images as possible, up to 64.

    Returns:
      Workers, and images of each.

    Raises:
      ConfigError: the batch has no divisor from 8 to 64.
    """
    images = max(n for n in range(1, 65) if batch % n == 0)
    if images < 8:
        near = -(-batch // 32) * 32
        raise ConfigError(
            f"--batch: expected a multiple of 8 to 64 images, got {batch}; use {near}"
        )
    return batch // images, images
