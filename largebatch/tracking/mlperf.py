"""The log of a run by the rules of MLPerf Training, ruleset 4.0.0: write, check and read it.

The clock follows the rules since v0.6: it starts before the training data are first read, when all
is compiled, warmed up and initialized, and stops as soon as an evaluation reaches the target
(mlcommons/training_policies, training_rules.adoc, "Run Results"). Epochs count from 1; an event
inside an epoch has a fraction of three decimals.
"""

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from largebatch.errors import ConfigError, UserError

if TYPE_CHECKING:  # it imports JAX, which reading a history does not need
    from largebatch.config import Config
    from largebatch.config.plan import Plan

RULESET = "4.0.0"
Division = Literal["open", "closed"]
CLOSED_TARGET = 0.759
"""Top-1 that ends a run of the closed division since v0.6 (training_rules.adoc, "Benchmarks")."""

_INVENTED_IMAGES_PER_S = 20_000  # of training and evaluation, where a log is rehearsed
# Removed from the path of the source file that mllog writes in every line.
_ROOT = Path(__file__).parents[2]


class MlperfTracker:
    """Writes the events of one run to `result_N.txt`.

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
        self._mllog.start(
            constants.INIT_START, time_ms=self._now_ms() if began is None else round(1000 * began)
        )
        for key, value in {
            constants.SUBMISSION_BENCHMARK: constants.RESNET,
            constants.SUBMISSION_DIVISION: division,
            constants.SUBMISSION_ORG: "unsubmitted",
            constants.SUBMISSION_PLATFORM: platform,
            constants.SUBMISSION_STATUS: constants.RESEARCH,
            **hyperparameters(plan),
        }.items():
            self._point(key, value)

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Do nothing: the log has events."""

    def event(self, name: str, step: int, samples: int, **values: float) -> None:
        """See `Tracker.event`; events without a key in the log are left out."""
        if self._state == "stopped":
            return
        keys, is_last = self._keys, step >= self._plan.steps
        match name:
            case "train_start":
                self._end(keys.INIT_STOP)
                self._start(keys.RUN_START)
                self._state = "running"
                self._open(step, samples)
            case "step":
                self._close_epoch(samples)
                if not is_last:
                    self._open(step, samples)
            case "eval_start":
                self._close_epoch(samples)
                self._close_block(samples)
                self._start(keys.EVAL_START, self._at(samples))
            case "eval_stop":
                top1, target = values["top1"], self._target
                self._point(keys.EVAL_ACCURACY, top1, self._at(samples))
                self._end(keys.EVAL_STOP, self._at(samples))
                if top1 >= target if target is not None else is_last:
                    self._stop(keys.SUCCESS, self._at(samples))
                elif is_last:
                    self._stop(keys.ABORTED, self._at(samples))
            case "train_stop":
                self._stop(keys.ABORTED, self._at(samples))

    def close(self) -> None:
        """Close the file; a run whose clock is still running is logged as aborted."""
        if self._state == "running":
            self._stop(self._keys.ABORTED, {})
        self._file.close()

    def _stop(self, status: str, where: Mapping[str, float]) -> None:
        self._end(self._keys.RUN_STOP, {self._keys.STATUS: status, **where})
        self._state = "stopped"

    def _open(self, step: int, samples: int) -> None:
        """Start a block, from one evaluation to the next, and an epoch, unless they are open."""
        keys, plan = self._keys, self._plan
        if self._block is None:
            self._block = samples, self._clock()
            later = range(step + 1, plan.steps)
            end = next((s for s in later if plan.evaluates_at(s)), plan.steps)
            count = _tidy((plan.position(end) - samples) / plan.epoch_samples)
            self._start(keys.BLOCK_START, {**self._from(samples), keys.EPOCH_COUNT: count})
        if self._epoch is None:
            self._epoch = samples // plan.epoch_samples + 1
            self._start(keys.EPOCH_START, {keys.EPOCH_NUM: self._epoch})

    def _close_block(self, samples: int) -> None:
        since, started = self._block
        seconds = self._clock() - started
        self._end(self._keys.BLOCK_STOP, self._from(since))
        # As in the logs of v3 and v4 submissions; the rules do not require it.
        throughput = round((samples - since) / max(seconds, 1e-9), 3)
        step = self._at(samples)[self._keys.EPOCH_NUM]
        self._point("tracked_stats", {"throughput": throughput}, {"step": step})
        self._block = None

    def _close_epoch(self, samples: int) -> None:
        """End the epoch if one is open and consumed."""
        if self._epoch is not None and samples >= self._epoch * self._plan.epoch_samples:
            self._end(self._keys.EPOCH_STOP, {self._keys.EPOCH_NUM: self._epoch})
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

    def _start(self, key: str, metadata: Mapping[str, Any] | None = None) -> None:
        self._mllog.start(key, metadata=metadata, time_ms=self._now_ms())

    def _end(self, key: str, metadata: Mapping[str, Any] | None = None) -> None:
        self._mllog.end(key, metadata=metadata, time_ms=self._now_ms())

    def _now_ms(self) -> int:
        return round(1000 * self._clock())


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


def check_logger(config: "Config") -> None:
    """Check that the package that writes and checks the MLPerf log is installed.

    Raises:
        UserError: it is missing.
    """
    if importlib.util.find_spec("mlperf_logging") is None:
        raise UserError(
            f"run.mlperf_log={config.run.mlperf_log} needs a package that is missing; use "
            "pip install mlperf-logging"
        )


def check_rules(plan: "Plan") -> None:
    """Give the log that a run of the plan would write to MLPerf's checker.

    Raises:
        ConfigError: the checker refuses it, whatever the accuracy.
        UserError: mlperf-logging is not installed.
    """
    options = plan.config.run
    check_logger(plan.config)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, f"result_{options.seed}.txt")
        reached = options.target or CLOSED_TARGET
        rehearse(
            log,
            plan,
            division=options.mlperf_log,
            accuracy=lambda epochs: reached * (epochs / plan.epochs),
            target=options.target,
        )
        refused = complaints(log)
    if refused:
        raise ConfigError(
            f"run.mlperf_log={options.mlperf_log}: the division's rules refuse this recipe: "
            f"{'; '.join(refused)}; change it, or use run.mlperf_log=open"
        )


def rehearse(
    log: Path,
    plan: "Plan",
    *,
    division: Division,
    accuracy: Callable[[float], float],
    target: float = 0.0,
) -> None:
    """Write the log of a run of a plan with an invented clock and invented accuracies.

    With it, a recipe can be checked before training.

    Args:
        log: the file to write.
        plan: the run.
        division: `open` or `closed`.
        accuracy: epochs consumed → top-1, a fraction.
        target: see `MlperfTracker`.
    """
    now = 0.0
    tracker = MlperfTracker(
        log, plan, division=division, platform="none", target=target, clock=lambda: now
    )

    def event(name: str, step: int, **values: float) -> None:
        tracker.event(name, step, plan.position(step), **values)

    event("train_start", 0)
    last = plan.stop_after_step
    for step in range(1, last + 1):
        now += (plan.position(step) - plan.position(step - 1)) / _INVENTED_IMAGES_PER_S
        if step == last or plan.evaluates_at(step):
            event("eval_start", step)
            now += plan.facts.validation_examples / _INVENTED_IMAGES_PER_S
            event("eval_stop", step, top1=accuracy(plan.position(step) / plan.epoch_samples))
        event("step", step)
    event("train_stop", last)
    tracker.close()


def complaints(log: Path) -> tuple[str, ...]:
    """Run MLPerf's compliance checker on a log, with warnings as errors.

    Args:
        log: `result_N.txt`; it names its division and benchmark itself.

    Returns:
        What the checker refuses, a short text each; empty if it accepts the log.

    Raises:
        UserError: there is no such file, or the checker cannot run.
    """
    if not log.is_file():
        raise _missing(log)
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage=training"]
    command += [f"--ruleset={RULESET}", "--werror", f"--log_output={os.devnull}", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ()
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if done.returncode != 1:
        raise UserError(f"mlperf-logging's checker ended with {done.returncode}: {last}")
    failed = re.findall(
        r"CHECK for '([^']*)' failed.*\n.*\"value\": ([^,]*),.*\nfailed test: *(.*?) *\n",
        done.stderr,
    )
    found = [f"{key}={value} fails {test}" for key, value, test in failed]
    return (*found, *re.findall(r"(?:Required|Failed checks for) .*", done.stderr)) or (last,)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the events of `result_N.txt`, in order: `key`, `value`, `metadata`, `time_ms`.

    Raises:
        UserError: the file is missing, or a line is not one of a log.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise _missing(path) from error
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line.removeprefix(":::MLLOG "))
            events.append({key: entry[key] for key in ("key", "value", "metadata", "time_ms")})
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: line {number} of {len(lines)} is not a line of an MLPerf log; delete it"
            ) from error
    return events


def seconds_between(events: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the seconds between the first `<name>_start` and the last `<name>_stop`.

    Raises:
        UserError: one of them is missing.
    """
    starts = [event["time_ms"] for event in events if event["key"] == f"{name}_start"]
    stops = [event["time_ms"] for event in events if event["key"] == f"{name}_stop"]
    if not starts or not stops:
        raise UserError(f"the log has {len(starts)} {name}_start and {len(stops)} {name}_stop")
    return (stops[-1] - starts[0]) / 1000


def _missing(log: Path) -> UserError:
    return UserError(f"{log}: no such file; use the path of a log, result_N.txt")


def _tidy(number: float) -> float:
    """An integer if it is one, else three decimals, as the convergence checker reads epochs."""
    return int(number) if number == int(number) else round(number, 3)
