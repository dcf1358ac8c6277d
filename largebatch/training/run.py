"""A run: its plan and its stages, and while it trains, its log, its checkpoints and its health."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch import data
from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.file import Progress, on_devices
from largebatch.config import Plan
from largebatch.errors import HealthError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.fault_tolerance.health import Health, Verdict
from largebatch.parallel import processes
from largebatch.tracking import Console, Summary, Target
from largebatch.tracking.summary import Status
from largebatch.training.evaluation import Result, evaluate, is_far_above, with_final_statistics
from largebatch.training.log import Log
from largebatch.training.stage import Stage, stage_at
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.timing import Clock, Profiler

PyTree = Any


class Run:
    """A run that is ready to start; after `start`, one attempt at its training.

    Each process calls the methods that evaluate, judge, save and load.
    """

    def __init__(self, plan: Plan, stages: tuple[Stage, ...], console: Console) -> None:
        """Prepare; nothing is compiled."""
        self.plan = plan
        self.stages = stages
        self.console = console

    def start(
        self,
        log: Log,
        checkpoints: Checkpoints,
        progress: Progress,
        began: float,
        watchdog: Watchdog = IDLE,
        *,
        profile: Path | None = None,
    ) -> None:
        """Become an attempt at the training.

        Args:
          log: receives rows and events.
          checkpoints: of the run directory.
          progress: where training starts.
          began: the ``time.perf_counter()`` at which this attempt started.
          watchdog: requests a stop.
          profile: output directory of the profiler for ``run.profile``; None: no tracing.
        """
        plan, stage = self.plan, self.first_stage
        self.log, self.checkpoints, self.watchdog = log, checkpoints, watchdog
        self.initial = progress
        """Where this attempt started."""
        self.step = progress.step
        """Steps known to be done."""
        self.pending: tuple[int, Metrics] | None = None
        """A step that has been dispatched and is not examined yet."""
        self.stop_reason = ""
        """Why the processes stop after the present step, once they have agreed to."""
        self.clock = Clock(
            progress.wall_s,
            began,
            train_s=progress.train_s,
            wait_s=progress.wait_s,
            evaluation_s=progress.evaluation_s,
            checkpoint_s=progress.checkpoint_s,
        )
        log.begin(self.clock, progress)
        self.health = Health(
            plan,
            memory=progress.memory.get("health")
            or {"skips": progress.skips, "rollbacks": progress.rollbacks},
            counts=data.class_counts(stage.train_source),
            newest=checkpoints.newest_path,
            returns_to=checkpoints.rollback_path,
        )
        self.result: Result | None = None
        """The newest evaluation of this attempt."""
        self.columns: dict[str, float] = dict(progress.memory.get("evaluation", {}))
        """Loss and accuracies of the newest evaluation of all attempts, by name."""
        self._counts: Sequence[int] = ()
        """Number of validation images of each class; empty before the first evaluation."""
        self._warned_of_statistics = False
        self._sets = data.identities(stage.further_sets)
        traced = plan.profile_steps if profile else None
        self.profiler = Profiler(traced, profile or Path(), self.clock, self.console.note)

    @property
    def first_stage(self) -> Stage:
        """The first stage; most runs have only one."""
        return self.stages[0]

    def stage_at(self, step: int) -> Stage:
        """Return the stage of step number ``step``, from 1."""
        return stage_at(self.stages, step)

    @property
    def checkpoint_shapes(self) -> PyTree:
        """Shapes and dtypes of the state as checkpoints hold it, the same for all stages."""
        return self.first_stage.programs.checkpoint_shapes

    @property
    def unreadable(self) -> Mapping[str, data.Unreadable]:
        """The examples that could not be decoded, by split."""
        return self.first_stage.unreadable

    @property
    def compile_s(self) -> float:
        """Seconds of compilation of all stages."""
        return sum(stage.programs.compile_s for stage in self.stages)

    def warn_of_unreadable(self) -> None:
        """Warn of every example that cannot be decoded, without a list on disk."""
        for split in self.unreadable.values():
            split.connect(lambda n, reason: self.console.warn(f"{n} cannot be decoded: {reason}"))

    def prepare(self) -> None:
        """Compile all that training will call, so that no step waits for a compilation."""
        for stage in self.stages:
            stage.programs.prepare(stage.evaluation_shapes)

    # ---- Health

    def judge(self, step: int, metrics: Metrics) -> Verdict:
        """Check loss, gradient norm and accuracy of a step that has been computed.

        Args:
          step: its number, from 1.
          metrics: on the host.

        Raises:
          HealthError: the run must stop.
        """
        self.watchdog.alive()
        if metrics.stop is not None and metrics.stop > 0:
            self.stop_reason = self.watchdog.requested or "another process was asked to stop"
        stage = self.plan.stage_at(step)
        left_out = 0 if metrics.left_out is None else round(float(metrics.left_out))
        try:
            verdict = self.health.look(
                step,
                float(metrics.loss),
                float(metrics.gradient_norm),
                top1=float(metrics.top1),
                images=stage.samples_per_step - left_out * stage.local_images,
            )
        except HealthError as error:
            self.log.event("unhealthy", step, why=str(error))
            raise
        return self._reported(step, verdict)

    def judge_state(self, step: int, state: TrainState) -> Verdict:
        """Check that all numbers of the state after a step are finite; waits for the step.

        Raises:
          HealthError: the run must stop.
        """
        return self._reported(step, self.health.look_at_state(step, self.is_finite(step, state)))

    def is_finite(self, step: int, state: TrainState) -> bool:
        """Whether all numbers of the state after a step are finite, on all processes; waits."""
        finite = self.stage_at(step).programs.steps.finite(state)
        # With faulty memory, the copies of the processes may differ.
        return bool(processes.agreed_minimum(int(finite)))

    def _reported(self, step: int, verdict: Verdict) -> Verdict:
        if verdict.text:
            self.console.warn(verdict.text)
        if verdict.action != "continue":
            self.log.event(verdict.action, step)
        return verdict

    # ---- Evaluation

    def evaluate(self, step: int, state: TrainState) -> TrainState:
        """Evaluate the state after ``step``; `result` has the result.

        Returns:
          The state with the BatchNorm statistics of the evaluation.

        Raises:
          Interrupted: the run must stop.
        """
        stage, position = self.stage_at(step), self.plan.position(step)
        state = with_final_statistics(stage, stage.placed(state), position, self.watchdog)
        counts = None if self._counts else np.zeros(stage.plan.facts.classes, np.int32)
        self.result = evaluate(stage, state, self.watchdog, counts)
        if counts is not None:
            self._counts = processes.gather(counts).sum(axis=0).tolist()
        self.columns = self.result.columns | self.result.set_columns
        return state

    def report_evaluation(self, step: int, seconds: float) -> dict[str, float]:
        """Print the newest result, which took some seconds; return its columns of the log."""
        result = self.result
        self.console.evaluation(
            step,
            epoch=self.log.epoch(step),
            loss=result.loss,
            top1=result.top1,
            top5=result.top5 if self.plan.facts.classes > 5 else None,
            ema_top1=result.ema and result.ema.top1,
            sets={name: other.top1 for name, other in result.sets.items()},
            seconds=seconds,
            target=self.target.look(step, self.clock.wall_s(), result.top1),
        )
        own = {f"validation/{name}": value for name, value in result.columns.items()}
        return own | result.set_columns

    def judge_evaluation(self, step: int) -> None:
        """Note the newest evaluation, of the state after a step, for later verdicts."""
        results = [self.result, *([self.result.ema] if self.result.ema else [])]
        self.health.look_at_evaluation(
            step,
            top1=max(each.top1 for each in results),
            loss=min(each.loss for each in results),
            counts=self._counts,
        )

    def warn_of_statistics(self) -> None:
        """Warn once if running statistics may explain a validation loss far above the row's."""
        statistics, loss = self.plan.norm_statistics, self.log.loss
        if (
            self._warned_of_statistics
            or statistics == "precise"
            or not is_far_above(self.result.loss, loss)
        ):
            return
        self._warned_of_statistics = True
        self.console.warn(
            f"the validation loss of {self.result.loss:.4g} is far above the training loss of "
            f"{loss:.4g}: the network overfits, or the BatchNorm statistics of norm.statistics="
            f"{statistics} lag behind its weights; --eval_only --config.norm.statistics=precise "
            "evaluates without that lag"
        )

    @property
    def target(self) -> Target:
        """What the evaluations of all attempts have reached."""
        return self.log.target

    # ---- Checkpoints

    def progress(self, step: int) -> Progress:
        """Return where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self.plan.position(step),
            wall_s=self.clock.wall_s(),
            compile_s=self.initial.compile_s + self.compile_s,
            **self.clock.spent(),
            skips=self.health.skips,
            rollbacks=self.health.rollbacks,
            memory={
                "row": self.log.memory(),
                "health": self.health.memory(),
                "evaluation": self.columns,
                "sets": self._sets,
            },
        )

    def save(
        self,
        step: int,
        state: TrainState,
        *,
        evaluation_due: Metrics | None = None,
        validation_top1: float = -1.0,
        for_stop: bool = False,
    ) -> None:
        """Start to save the state after ``step``.

        Args:
          step: its number.
          state: after it.
          evaluation_due: metrics of the step, on the host, if its evaluation was interrupted; the
            next attempt repeats the evaluation and reports them.
          validation_top1: accuracy of this state, a fraction; -1 if it was not evaluated.
          for_stop: whether an uninterrupted run has no checkpoint here.
        """
        self.watchdog.check()
        progress = dataclasses.replace(
            self.progress(step), validation_top1=validation_top1, for_stop=int(for_stop)
        )
        if evaluation_due is not None:
            numbers = {key: float(getattr(evaluation_due, key)) for key in MEASURED}
            progress = dataclasses.replace(progress, evaluation_due=1, **numbers)
        since = time.perf_counter()
        with self.watchdog.section("checkpoint"):
            self.log.flush()  # the log is never behind a checkpoint
            stored = self.first_stage.programs.steps.to_checkpoint(state)
            # The checkpoint said that its evaluation was due; now it is done.
            replace = bool(self.initial.evaluation_due) and step == self.initial.step
            self.checkpoints.save(stored, progress, self.plan, replace=replace)
        self.log.event("checkpoint", step)
        self.clock.checkpoint_s += time.perf_counter() - since
        self.log.times(step, self.compile_s)

    def load(self, step: int, *, until: int) -> TrainState:
        """Return the state of the newest checkpoint of at most ``until`` steps, for a rollback.

        Args:
          step: the step that it becomes the state of; its stage gives the shardings.
          until: the last step before a failure.
        """
        with self.watchdog.section("checkpoint"):
            found = self.checkpoints.newest(self.plan, self.checkpoint_shapes, until=until)
            stored = on_devices(found.state, self.checkpoint_shapes)
            state = self.first_stage.programs.steps.from_checkpoint(stored)
            return self.stage_at(step).placed(state)

    def wait_for_checkpoint(self) -> None:
        """Wait until process 0 has written the newest checkpoint."""
        since = time.perf_counter()
        with self.watchdog.section("checkpoint"):
            processes.first_process_does(self.checkpoints.wait)
        self.clock.checkpoint_s += time.perf_counter() - since

    def summary(self, status: Status) -> Summary:
        """Return the summary of the run, as this attempt leaves it.

        Args:
          status: how the attempt ended.
        """
        progress, target, evaluated = self.progress(self.step), self.target, self.columns
        return Summary(
            status=status,
            top1=evaluated.get("top1"),
            top5=evaluated.get("top5"),
            loss=evaluated.get("loss"),
            steps=progress.step,
            samples=progress.samples,
            wall_s=progress.wall_s,
            compile_s=progress.compile_s,
            images_per_s=progress.samples / progress.train_s if progress.train_s > 0 else None,
            **self.clock.spent(),
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            unreadable=sum(split.count for split in self.unreadable.values()),
            target_top1=target.top1 or None,
            target_step=target.step,
            target_s=target.seconds,
            **{key: value for key, value in evaluated.items() if key.startswith("ema_")},
            sets={key: value for key, value in evaluated.items() if "/" in key},
        )
