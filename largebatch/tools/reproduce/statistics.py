"""What a clocked run found, and what several of them say together."""

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """One run.

    Attributes:
        seed: its seed.
        status: how training ended.
        reached: whether the log's clock stopped at its target; None where there is no target and
            the clock stopped at the end of training.
        top1: validation accuracy at the end of training, a fraction.
        top5: the same within the first five guesses.
        loss: validation loss, nats per image.
        clock_s: seconds from run_start to run_stop.
        epochs: consumed when the clock stopped; None for a run that broke off.
        initialisation_s: seconds from init_start to init_stop, off the clock, compilation included.
        compile_s: seconds of compiling.
        train_s: seconds of steps, the waits for data included.
        wait_s: seconds of those waits.
        evaluation_s: seconds of evaluations.
        checkpoint_s: seconds of checkpoints.
        images_per_s: training throughput, without evaluations and checkpoints.
        accepted: whether MLPerf's checker accepts the log.
    """

    seed: int
    status: str
    reached: bool | None
    top1: float | None
    top5: float | None
    loss: float | None
    clock_s: float
    epochs: float | None
    initialisation_s: float
    compile_s: float
    train_s: float
    wait_s: float
    evaluation_s: float
    checkpoint_s: float
    images_per_s: float | None
    accepted: bool

    @property
    def scored_s(self) -> float | None:
        """Seconds that count; None of a run that broke off or did not reach its target."""
        counts = self.status == "complete" if self.reached is None else self.reached
        return self.clock_s if counts else None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and how far from the true one it may be.

    Attributes:
        mean: of the runs.
        low: lower end of the 95 % confidence interval; None with one run.
        high: upper end; None with one run.
        runs: how many.
    """

    mean: float
    low: float | None
    high: float | None
    runs: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean with its 95 % confidence interval, by Student's t: mean ± t·s/√n.

    Args:
        values: one for each run, at least one.
    """
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def olympic_mean(values: Sequence[float | None]) -> float | None:
    """The mean of a set of times as MLPerf takes it: without the least and the greatest.

    That wants five runs; of fewer, it is the plain mean (training_rules.adoc, "Benchmark Results").

    Args:
        values: seconds, at least one; None for a run that did not reach its target, which counts as
            the slowest.

    Returns:
        Seconds; None where a run that did not reach its target is left.
    """
    times = sorted(math.inf if value is None else value for value in values)
    mean = statistics.fmean(times[1:-1] if len(times) >= 5 else times)
    return mean if math.isfinite(mean) else None
