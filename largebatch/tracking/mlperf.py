"""The log of a run by the rules of MLPerf Training, ruleset 4.0.0: `result_N.txt`.

The clock follows the rules since v0.6: it starts before the training data are first read, when all
is compiled, warmed up and initialized, and stops as soon as an evaluation reaches the target
(mlcommons/training_policies, training_rules.adoc, "Run Results"). Epochs count from 1; an event
inside an epoch has a fraction of three decimals.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # it imports JAX, which reading a history does not need
    from largebatch.config import Plan

RULESET = "4.0.0"
Division = Literal["open", "closed"]
CLOSED_TARGET = 0.759
"""Top-1 that ends a run of the closed division since v0.6 (training_rules.adoc, "Benchmarks")."""

# Removed from the path of the source file that mllog writes in every line.
_ROOT = Path(__file__).parents[2]


class MlperfTracker:
    """Writes the events of one run.

    Everything about the recipe is read from the plan. After the clock has stopped, at the target or
    at the end, nothing more is written, even if training continues.
    """

    def __init__(
        self,
        path: Path,
        plan: "Plan",
        *,
        division: Division,
        platform: str,
        target: float = 0.0,
        organisation: str = "unsubmitted",
        began: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Replace the file and write what is known before training.

        Args:
            path: the file; its directory is created if absent.
            plan: the run.
            division: `open` or `closed`.
            platform: the devices, in words.
            target: top-1, a fraction, at which the clock stops; 0: `CLOSED_TARGET` in the closed
                division, the end of training in the open one.
            organisation: the submitter.
            began: when initialisation began, in seconds of `clock`; None: now.
            clock: seconds since 1970.
        """
        from mlperf_logging.mllog import constants
        from mlperf_logging.mllog.mllog import MLLogger

        path.parent.mkdir(parents=True, exist_ok=True)
        # Not in the registry of `logging`: two runs in a process share nothing.
        logger = logging.Logger("mlperf", logging.INFO)
        self._file = logging.FileHandler(path, mode="w")
        logger.addHandler(self._file)
        self._mllog = MLLogger(logger, root_dir=re.escape(str(_ROOT)))
        self._keys = constants
        self._plan = plan
        self._clock = clock
        self._target = target or (CLOSED_TARGET if division == "closed" else None)
        self._state: Literal["initialising", "running", "stopped"] = "initialising"
        self._epoch: int | None = None
        self._block: tuple[int, float] | None = None  # samples and time at which it started
        # The rules require empty system caches before each run, which is left to the submitter.
        self._point(constants.CACHE_CLEAR, False)
        self._start(constants.INIT_START, began=began)
        for key, value in {
            constants.SUBMISSION_BENCHMARK: constants.RESNET,
            constants.SUBMISSION_DIVISION: division,
            constants.SUBMISSION_ORG: organisation,
            constants.SUBMISSION_PLATFORM: platform,
            constants.SUBMISSION_STATUS: constants.RESEARCH,
            **hyperparameters(plan),
        }.items():
            self._point(key, value)

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Do nothing: the log has events."""

    def event(self, name: str, step: int, samples: int, **values: float) -> None:
        """See `Tracker.event`; events without a key in the log are left out."""
        known = name in ("train_start", "step", "eval_start", "eval_stop", "train_stop")
        if known and self._state != "stopped":
            getattr(self, f"_{name}")(step, samples, **values)

    def close(self) -> None:
        """Close the file; a run whose clock is still running is logged as aborted."""
        if self._state == "running":
            self._run_stop(None, self._keys.ABORTED)
        self._state = "stopped"
        self._file.close()

    def _train_start(self, step: int, samples: int) -> None:
        self._end(self._keys.INIT_STOP)
        self._start(self._keys.RUN_START)
        self._state = "running"
        self._open(step, samples)

    def _step(self, step: int, samples: int) -> None:
        if self._epoch is not None and samples >= self._epoch * self._plan.epoch_samples:
            self._close_epoch()
        if step < self._plan.steps:
            self._open(step, samples)

    def _eval_start(self, step: int, samples: int) -> None:
        if self._epoch is not None and samples >= self._epoch * self._plan.epoch_samples:
            self._close_epoch()
        self._close_block(samples)
        self._start(self._keys.EVAL_START, metadata=self._at(samples))

    def _eval_stop(self, step: int, samples: int, *, top1: float) -> None:
        self._point(self._keys.EVAL_ACCURACY, top1, self._at(samples))
        self._end(self._keys.EVAL_STOP, metadata=self._at(samples))
        last = step >= self._plan.steps
        if (self._target is not None and top1 >= self._target) or (last and self._target is None):
            self._run_stop(samples, self._keys.SUCCESS)
        elif last:
            self._run_stop(samples, self._keys.ABORTED)

    def _train_stop(self, step: int, samples: int) -> None:
        self._run_stop(samples, self._keys.ABORTED)

    def _run_stop(self, samples: int | None, status: str) -> None:
        where = {} if samples is None else self._at(samples)
        self._end(self._keys.RUN_STOP, metadata={self._keys.STATUS: status, **where})
        self._state = "stopped"

    def _open(self, step: int, samples: int) -> None:
        """Start a block, from one evaluation to the next, and an epoch, unless they are open."""
        keys, per_epoch = self._keys, self._plan.epoch_samples
        if self._block is None:
            self._block = samples, self._clock()
            ahead = self._plan.position(self._next_evaluation(step)) - samples
            metadata = {**self._from(samples), keys.EPOCH_COUNT: _tidy(ahead / per_epoch)}
            self._start(keys.BLOCK_START, metadata=metadata)
        if self._epoch is None:
            self._epoch = samples // per_epoch + 1
            self._start(keys.EPOCH_START, metadata={keys.EPOCH_NUM: self._epoch})

    def _next_evaluation(self, step: int) -> int:
        later = range(step + 1, self._plan.steps)
        return next((s for s in later if self._plan.evaluates_at(s)), self._plan.steps)

    def _close_block(self, samples: int) -> None:
        since, started = self._block
        seconds = self._clock() - started
        self._end(self._keys.BLOCK_STOP, metadata=self._from(since))
        # As in the logs of v3 and v4 submissions; the rules do not require it.
        self._point(
            "tracked_stats",
            {"throughput": round((samples - since) / max(seconds, 1e-9), 3)},
            {"step": self._at(samples)[self._keys.EPOCH_NUM]},
        )
        self._block = None

    def _close_epoch(self) -> None:
        self._end(self._keys.EPOCH_STOP, metadata={self._keys.EPOCH_NUM: self._epoch})
        self._epoch = None

    def _at(self, samples: int) -> dict[str, float]:
        """The end of the epoch in which `samples` are consumed, or the place inside it."""
        return {
            self._keys.EPOCH_NUM: _tidy(samples / self._plan.epoch_samples),
            self._keys.SAMPLES_COUNT: samples,
        }

    def _from(self, samples: int) -> dict[str, float]:
        """The epoch that begins after `samples` are consumed."""
        return {
            self._keys.FIRST_EPOCH_NUM: _tidy(1 + samples / self._plan.epoch_samples),
            self._keys.SAMPLES_COUNT: samples,
        }

    def _point(self, key: str, value: Any, metadata: Mapping[str, Any] | None = None) -> None:
        self._mllog.event(key, value, metadata=metadata, time_ms=self._now_ms())

    def _start(
        self, key: str, *, metadata: Mapping[str, Any] | None = None, began: float | None = None
    ) -> None:
        self._mllog.start(key, metadata=metadata, time_ms=self._now_ms(began))

    def _end(self, key: str, *, metadata: Mapping[str, Any] | None = None) -> None:
        self._mllog.end(key, metadata=metadata, time_ms=self._now_ms())

    def _now_ms(self, now: float | None = None) -> int:
        return round(1000 * (self._clock() if now is None else now))


def hyperparameters(plan: "Plan") -> dict[str, Any]:
    """Return the hyperparameters that the rules require, by the keys of the log.

    Values that a recipe does not have, such as the power of a cosine, are left out, so that the
    closed division's check reports them as missing.
    """
    from largebatch.config.registries import OPTIMIZERS
    from largebatch.optim.lars import lars_of  # imports JAX, as the plan does

    optimizer, schedule = plan.config.optimizer, plan.schedule
    power = {"polynomial": schedule.power, "linear": 1.0}.get(schedule.decay)
    decay = schedule.decay_end - schedule.warmup
    warmup_epochs = _tidy(schedule.warmup / plan.epoch_samples)
    prefix = f"{optimizer.name}_opt" if optimizer.name in ("lars", "sgd") else "opt"
    stage = plan.first_stage
    values = {
        "global_batch_size": max(stage.samples_per_step for stage in plan.stages),
        "train_samples": plan.facts.train_examples,
        "eval_samples": plan.facts.validation_examples,
        "seed": plan.config.run.seed,
        "gradient_accumulation_steps": stage.microbatches,
        "model_bn_span": stage.span * stage.images_per_worker,
        "opt_name": optimizer.name,
        f"{prefix}_base_learning_rate": schedule.peak,
        f"{prefix}_end_learning_rate": schedule.end,
        f"{prefix}_learning_rate_decay_poly_power": power,
        f"{prefix}_learning_rate_decay_steps": _tidy(decay / stage.samples_per_step),
        f"{prefix}_momentum": optimizer.momentum if optimizer.name in OPTIMIZERS else None,
        f"{prefix}_weight_decay": optimizer.weight_decay,
    }
    if optimizer.name == "lars":
        values["lars_epsilon"] = lars_of(optimizer).epsilon
        values["lars_opt_learning_rate_warmup_epochs"] = warmup_epochs
    else:
        values["opt_learning_rate_warmup_epochs"] = warmup_epochs
    return {key: value for key, value in values.items() if value is not None}


def _tidy(number: float) -> float:
    """An integer if it is one, else three decimals, as the convergence checker reads epochs."""
    return int(number) if number == int(number) else round(number, 3)
