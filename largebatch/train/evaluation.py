"""Exact evaluation: every validation image once, for any batch, device and process count."""

import contextlib
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from largebatch.errors import DataError
from largebatch.train import statistics
from largebatch.train.build import Run
from largebatch.train.loss import Sums
from largebatch.train.steps import TrainState

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Result:
    """Over the whole validation split; accuracies are fractions."""

    loss: float
    top1: float
    top5: float
    images: int
    seconds: float


def evaluate(run: Run, state: TrainState, position: int) -> Result:
    """Evaluate ``state``, which has been trained up to sample ``position``.

    Raises:
      DataError: the images counted are not those of the split.
    """
    start = time.perf_counter()
    stats = state.stats
    if run.plan.config.norm.statistics == "precise":
        stats = precise_statistics(run, state, position)
    pending = []
    with contextlib.closing(run.validation_batches()) as batches:
        for batch in batches:
            program = run.programs.evaluate(batch.shape)
            pending.append(program(state.params, stats, batch.images, batch.labels, batch.mask))
            if len(pending) > 2:  # bounds the batches that wait on the device
                pending[-3] = jax.device_get(pending[-3])
    # Sums over the split in float64: counts stay exact however many images there are.
    totals = Sums(*np.sum(np.asarray(jax.device_get(pending), np.float64), axis=0))
    expected = run.plan.facts.validation_examples
    if int(totals.count) != expected:
        raise DataError(
            f"evaluation counted {totals.count:.0f} images of {expected}; the source is at fault"
        )
    return Result(
        loss=float(totals.loss / expected),
        top1=float(totals.top1 / expected),
        top5=float(totals.top5 / expected),
        images=expected,
        seconds=time.perf_counter() - start,
    )


def precise_statistics(run: Run, state: TrainState, position: int) -> PyTree:
    """Statistics of the ``norm.precise_batches`` global batches that training consumed last.

    A function of parameters and position alone, so that a restored run evaluates to the same.
    Before so many steps are done, it takes the batches from position 0 on, seen or not.
    """
    step = run.plan.samples_per_step
    wanted = run.plan.config.norm.precise_batches * step
    start = max(0, position - wanted)
    total, count = None, 0
    with contextlib.closing(run.train_microbatches(start, start + wanted)) as microbatches:
        for microbatch in microbatches:
            measured = jax.device_get(
                run.programs.measure_statistics(state.params, state.stats, microbatch.images)
            )
            measured = jax.tree.map(np.float64, measured)
            total = measured if total is None else jax.tree.map(np.add, total, measured)
            count += 1
    average = jax.tree.map(lambda x: x / count, total)
    return jax.tree.map(
        lambda x: np.asarray(x, run.programs.steps.dtype), statistics.pooled(average)
    )
