"""Exact evaluation: every validation image once, for any batch, device and process count."""

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from largebatch.checkpoint.file import on_devices
from largebatch.errors import DataError
from largebatch.fault_tolerance import IDLE, Interrupted, Watchdog
from largebatch.models.loss import Sums
from largebatch.parallel.transfer import OnDevices, computed
from largebatch.training import statistics
from largebatch.training.dispatch import control_flags
from largebatch.training.stage import Stage
from largebatch.training.state import Averages, TrainState
from largebatch.trees import with_leaves

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Result:
    """Over the whole validation split; accuracies are fractions."""

    loss: float
    top1: float
    top5: float
    images: int
    seconds: float
    ema: "Result | None" = None
    """The result of the averaged weights; None without ``schedule.ema``."""
    sets: Mapping[str, "Result"] = dataclasses.field(default_factory=dict)
    """The results of further validation sets by name (``data.validation_sets``)."""

    @property
    def score(self) -> float:
        """Top-1 accuracy that decides which checkpoint is best: of the averaged weights, if any."""
        return (self.ema or self).top1

    @property
    def columns(self) -> dict[str, float]:
        """Loss and accuracies by name; those of the averaged weights begin with ``ema_``."""
        own = {name: getattr(self, name) for name in ("loss", "top1", "top5")}
        averaged = self.ema.columns if self.ema else {}
        return own | {f"ema_{name}": value for name, value in averaged.items()}

    @property
    def set_columns(self) -> dict[str, float]:
        """Loss and accuracies on further validation sets, such as ``NAME/top1``."""
        return {
            f"{name}/{column}": value
            for name, result in self.sets.items()
            for column, value in result.columns.items()
        }


def with_final_statistics(
    stage: Stage, state: TrainState, position: int, watchdog: Watchdog = IDLE
) -> TrainState:
    """Return ``state`` with the BatchNorm statistics that its evaluation uses.

    These are the running statistics, or precise ones. A checkpoint then holds the precise ones too,
    so whatever reads it reproduces the evaluation. Training never reads running statistics.

    Args:
      stage: that trained it.
      state: trained up to sample ``position``; not donated.
      position: see ``state``.
      watchdog: polled between microbatches.

    Raises:
      Interrupted: the run must stop.
    """
    if stage.plan.norm_statistics != "precise":
        return state
    like = stage.state.stats
    stats = precise_statistics(stage, state, position, watchdog)
    state = state._replace(stats=on_devices(stats, like))
    if state.ema is not None:
        stats = precise_statistics(stage, state.ema, position, watchdog)
        state = state._replace(ema=state.ema._replace(stats=on_devices(stats, like)))
    return state


def evaluate(
    stage: Stage,
    state: TrainState,
    watchdog: Watchdog = IDLE,
    counts: np.ndarray | None = None,
) -> Result:
    """Evaluate ``state`` and its averaged weights, if any, on all validation sets.

    `with_final_statistics` explains the statistics. Every image is read once.

    Args:
      stage: that trained it.
      state: not donated.
      watchdog: polled between batches.
      counts: (classes,) integers; receives the number of images of each class of the main set that
        this process reads.

    Raises:
      DataError: the number of images counted is not that of the split.
      Interrupted: the run must stop.
    """
    main = _evaluate_set(stage, state, "validation", watchdog, counts)
    others = (_evaluate_set(stage, state, name, watchdog) for name in stage.splits.further)
    return dataclasses.replace(main, sets=dict(zip(stage.splits.further, others, strict=True)))


def _evaluate_set(
    stage: Stage,
    state: TrainState,
    name: str,
    watchdog: Watchdog,
    counts: np.ndarray | None = None,
) -> Result:
    """Evaluate ``state`` and its averaged weights, if any, on one of the validation sets."""
    start = time.perf_counter()
    networks = [state] if state.ema is None else [state, state.ema]

    def program(batch: OnDevices) -> list[tuple[Sums, jax.Array | None]]:
        asked = bool(watchdog.requested)
        found = [evaluate_batch(stage, n.params, n.stats, batch, asked) for n in networks]
        if counts is not None:
            _count(counts, batch)
        return found

    found, stop = [], None
    with contextlib.closing(stage.validation_batches(name, watchdog)) as batches:
        for results in computed(batches, program):
            if stop is not None and stop > 0:  # the same number on all processes
                raise Interrupted(watchdog.requested or "another process was asked to stop")
            found.append([sums for sums, _ in results])
            stop = results[0][1]
    expected, seconds = len(stage.validation_sets[name]), time.perf_counter() - start
    own, *averaged = (_result(expected, sums, seconds) for sums in zip(*found, strict=True))
    return dataclasses.replace(own, ema=averaged[0]) if averaged else own


def _count(counts: np.ndarray, batch: OnDevices) -> None:
    """Add the number of images of each class in this process's part of a batch."""
    parts = zip(batch.labels.addressable_shards, batch.mask.addressable_shards, strict=True)
    for labels, mask in parts:
        kept = np.asarray(labels.data)[np.asarray(mask.data) > 0]
        counts += np.bincount(kept, minlength=len(counts)).astype(counts.dtype)


def _result(expected: int, counted: Sequence[Sums], seconds: float) -> Result:
    """Return the result of the sums of all batches; each image must have been counted once."""
    # Sums over the split in float64: counts stay exact however many images there are.
    totals = Sums(*np.sum(np.asarray(counted, np.float64), axis=0))
    if int(totals.count) != expected:
        raise DataError(
            f"evaluation: expected {expected} images, counted {totals.count:.0f}; check the length "
            "of data.source or data.validation_sets"
        )
    return Result(
        loss=float(totals.loss / expected),
        top1=float(totals.top1 / expected),
        top5=float(totals.top5 / expected),
        images=expected,
        seconds=seconds,
    )


def evaluate_batch(
    stage: Stage, params: PyTree, stats: PyTree, batch: OnDevices, stop: bool = False
) -> tuple[Sums, jax.Array | None]:
    """Return the sums over a batch of evaluation, and the number of devices asked to stop.

    Args:
      stage: its program is compiled on first use.
      params: parameters.
      stats: BatchNorm statistics that normalize.
      batch: on the devices.
      stop: whether this process has a request to stop; processes exchange this.
    """
    several = stage.steps.plan.facts.processes > 1
    flags = control_flags(stage.steps, [stop]) if several else None
    program = stage.evaluate(batch.images.shape[1:3])
    return program(params, stats, batch.images, batch.labels, batch.mask, flags)


def precise_statistics(
    stage: Stage, state: TrainState | Averages, position: int, watchdog: Watchdog = IDLE
) -> PyTree:
    """Return statistics of the ``norm.precise_batches`` global batches that training consumed last.

    At most one epoch of them, since an image that is read twice adds nothing, and at most those
    consumed so far (one at position 0). The result is a function of parameters and position, so a
    restored run evaluates to the same numbers.
    """
    if not stage.steps.trained(state.stats):  # no BatchNorm, or all of it is frozen
        return jax.device_get(state.stats)
    step = stage.plan.samples_per_step
    of_epoch, consumed = -(-stage.plan.epoch_samples // step), max(1, position // step)
    wanted = min(stage.plan.config.norm.precise_batches, of_epoch, consumed) * step
    start = max(0, position - wanted)
    total, count = None, 0
    with contextlib.closing(
        stage.train_microbatches(start, start + wanted, watchdog)
    ) as microbatches:
        for microbatch in microbatches:
            measured = jax.device_get(
                stage.measure_statistics(state.params, state.stats, microbatch.images)
            )
            measured = jax.tree.map(np.float64, measured)
            total = measured if total is None else jax.tree.map(np.add, total, measured)
            count += 1
    average = jax.tree.map(lambda x: x / count, total)
    measured = jax.tree.map(lambda x: np.asarray(x, stage.steps.dtype), statistics.pooled(average))
    return with_leaves(jax.device_get(state.stats), measured)
