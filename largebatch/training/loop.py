"""The training loop: dispatch a step, examine the one before it, evaluate, save."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from largebatch.checkpoint.arrays import on_devices
from largebatch.checkpoint.manager import Checkpoints, Progress
from largebatch.errors import HealthError
from largebatch.fault_tolerance import IDLE, Interrupted, Watchdog
from largebatch.fault_tolerance.health import WELL, Health, Verdict
from largebatch.parallel import processes
from largebatch.parallel.transfer import OnDevices
from largebatch.tracking import Summary, Target, Tracker
from largebatch.tracking.summary import Status
from largebatch.training.evaluation import Result, averaged_columns
from largebatch.training.evaluator import Evaluator
from largebatch.training.inspection import Inspection
from largebatch.training.journal import Journal
from largebatch.training.outcome import Outcome, after_step
from largebatch.training.programs import run_step
from largebatch.training.setup import Run, StageRun
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.timing import Clock, Profiler


class Loop:
    """Trains in this process, from ``progress`` to the last step or ``run.stop_after``."""

    def __init__(
        self,
        run: Run,
        tracker: Tracker,
        checkpoints: Checkpoints,
        progress: Progress,
        began: float,
        watchdog: Watchdog = IDLE,
        *,
        target: Target | None = None,
        profile: Path | None = None,
    ) -> None:
        """Prepare; `train` starts.

        Args:
          run: ready to start.
          tracker: receives the rows and events of the log.
          checkpoints: of the run directory.
          progress: where training starts.
          began: the ``time.perf_counter()`` at which this attempt started.
          watchdog: requests a stop.
          target: accuracy to reach.
          profile: output directory of the profiler for ``run.profile``; None: no tracing.
        """
        self.run = run
        self.tracker = tracker
        self.checkpoints = checkpoints
        self.initial_progress = progress
        self.clock = Clock(progress.wall_s, began, train_s=progress.train_s)
        self.target = target or Target(0.0)
        self.step = progress.step
        """Steps known to be done."""
        self._watchdog = watchdog
        self._profiler = Profiler(
            run.plan.profile_steps if profile else None,
            profile or Path(),
            self.clock,
            run.console.note,
        )
        self._bar = run.console.progress(
            run.plan.steps, progress.step, samples_per_step=run.plan.first_stage.samples_per_step
        )
        self._pending: tuple[int, Metrics] | None = None
        """A step that has been dispatched and is not examined yet."""
        self._stop_reason = ""
        """Why the processes stop after the present step, once they have agreed to."""
        self._journal = Journal(run, tracker, self.clock, progress.step)
        self._evaluator = Evaluator(run, self._journal, self.clock, self.target, watchdog)
        self._inspection = Inspection(run, self._journal, self.clock, progress.step, watchdog)
        self._health = Health(
            run.plan,
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            newest=checkpoints.newest_path,
        )

    def train(self, state: TrainState) -> TrainState:
        """Train; return the state after the last step, which has been evaluated and saved.

        Raises:
          Interrupted: the run must stop; the state of the last step has been saved.
          HealthError: a loss or gradient is not finite, or the training has diverged.
        """
        plan = self.run.plan
        first = self.initial_progress.step
        last = max(first, plan.stop_after_step)
        if last > first:
            self._journal.event("train_start", first)
        with self._bar as self._progress:
            if self.initial_progress.evaluation_due:
                state = self._repeat_evaluation(first, state)
            for stage in self.run.stages:
                begin = max(first, stage.plan.first_step)
                end = min(last, stage.plan.last_step)
                if begin < end:
                    state = self._train_stage(stage, stage.placed(state), begin, end)
        if last > first:
            self._journal.event("train_stop", last)
        if self.result is None:
            with self._watchdog.section("evaluation"):
                state = self._evaluator.compute(last, state)
        return state

    def _train_stage(self, stage: StageRun, state: TrainState, first: int, last: int) -> TrainState:
        """Train the steps after ``first`` up to ``last``, all of one stage."""
        plan = self.run.plan
        batches = stage.train_microbatches(
            plan.position(first), plan.position(last), self._watchdog.patience
        )
        with (
            contextlib.closing(batches),
            contextlib.closing(self._profiler),
            self._watchdog.section("step"),
        ):
            self.clock.start()
            feed = self.clock.timed(batches, self._watchdog)
            for step in range(first + 1, last + 1):
                state, metrics = self._dispatch(stage, step, state, feed, is_last=step == last)
                # Waits for the previous step while this one computes.
                verdict = self._examine_pending()
                outcome = after_step(plan, step, stop_requested=bool(self._stop_reason))
                self._pending = step, metrics
                if verdict.action == "rollback":
                    state = self._discard_and_roll_back(step, metrics, verdict, outcome)
                if plan.is_due(step, stage.plan.layers_every_steps):
                    self._journal.layers(step, state)
                if outcome.synchronizes:
                    state = self._synchronize(step, state, metrics)
            verdict = self._examine_pending()
            if verdict.action == "rollback":
                state = self._roll_back(verdict, last)
            self.clock.pause()
        return state

    @property
    def result(self) -> Result | None:
        """The newest evaluation of this attempt."""
        return self._evaluator.result

    def progress(self, step: int) -> Progress:
        """Return where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self.run.plan.position(step),
            wall_s=self.clock.wall_s(),
            compile_s=self.initial_progress.compile_s + self.run.compile_s,
            train_s=self.clock.now(),
            skips=self._health.skips,
            rollbacks=self._health.rollbacks,
        )

    def images_per_s(self, step: int) -> float | None:
        """Training throughput of all processes of the run, without compilation and evaluation."""
        seconds = self.clock.now()
        return self.run.plan.position(step) / seconds if seconds > 0 else None

    def summary(self, status: Status) -> Summary:
        """Build the run summary."""
        progress, result = self.progress(self.step), self.result
        return Summary(
            status=status,
            top1=result and result.top1,
            top5=result and result.top5,
            loss=result and result.loss,
            steps=progress.step,
            samples=progress.samples,
            wall_s=progress.wall_s,
            compile_s=progress.compile_s,
            images_per_s=self.images_per_s(progress.step),
            train_s=self.clock.now() - self.initial_progress.train_s,
            wait_s=self.clock.wait_s,
            evaluation_s=self.clock.evaluation_s,
            checkpoint_s=self.clock.checkpoint_s,
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            unreadable=sum(split.count for split in self.run.unreadable.values()),
            target_top1=self.target.top1 or None,
            target_step=self.target.step,
            target_s=self.target.seconds,
            **averaged_columns(result),
        )

    def _dispatch(
        self,
        stage: StageRun,
        step: int,
        state: TrainState,
        feed: Iterator[OnDevices],
        *,
        is_last: bool,
    ) -> tuple[TrainState, Metrics]:
        """Dispatch a step; trace, time or repeat it where that is due.

        Raises:
          Interrupted: the run must stop; the state before the step has been saved.
        """
        # All rates follow from the sample position, the only clock of the schedules.
        rates = self.run.plan.rates(step)
        copy = self._inspection.begin(stage, step, state)
        self._profiler.before(step, state, stage.programs.of_step)
        times = self._inspection.measured
        try:
            state, metrics = run_step(stage.programs, state, feed, rates, self._watchdog, times)
        except Interrupted:  # the state is unchanged
            self.clock.pause()
            if self._examine_pending().action != "rollback":  # else the newest checkpoint stays
                state = self._finite_or_rolled_back(step - 1, state, save=False)
                self._journal.event("preempted", step - 1)
                self._save(step - 1, state, self.progress(step - 1))
            raise
        self._inspection.end(stage, step, copy, (state, metrics), rates)
        self._profiler.after(step, state, last=is_last)
        return state, metrics

    def _synchronize(self, step: int, state: TrainState, metrics: Metrics) -> TrainState:
        """Wait for a step; evaluate, log and save if due.

        Returns:
          The state to continue with: after a rollback that of a checkpoint, after an evaluation
          with its statistics.

        Raises:
          Interrupted: the run stops here; the state has been saved.
        """
        self._profiler.after(step, state, last=True)
        metrics = jax.device_get(metrics)
        self.clock.pause()
        # A step that started from a discarded state is not judged.
        state_replaced, self._pending = self._pending is None, None
        if not state_replaced and (verdict := self._judge(step, metrics)).action == "rollback":
            state, state_replaced = self._roll_back(verdict, step, save=False), True
        elif (checked := self._finite_or_rolled_back(step, state, save=False)) is not state:
            state, state_replaced = checked, True
        self.clock.pause()  # a rollback has started it
        # Computed a second time: this step may have brought a request to stop.
        outcome = after_step(self.run.plan, step, stop_requested=bool(self._stop_reason))
        columns: dict[str, float] | None = {} if outcome.has_row else None
        top1 = -1.0
        if outcome.evaluates:
            final, columns = self._evaluate(step, state, metrics)
            if outcome.keeps_statistics:
                state, top1 = final, self.result.score
        self._report(step, metrics, columns)
        if outcome.stops_early:
            self._journal.event("preempted", step)
        is_best = top1 >= 0 and self.checkpoints.exceeds_best(top1)
        if outcome.saves or state_replaced or is_best:
            self._save(step, state, dataclasses.replace(self.progress(step), validation_top1=top1))
        if outcome.stops_early:
            raise Interrupted(self._stop_reason)
        self._journal.event("step", step)
        self.clock.start()
        return state

    def _repeat_evaluation(self, step: int, state: TrainState) -> TrainState:
        """Repeat the evaluation in which the previous attempt was interrupted."""
        stage = self.run.stage_at(step)
        metrics = Metrics(**{key: getattr(self.initial_progress, key) for key in MEASURED})
        return self._synchronize(step, stage.placed(state), metrics)

    def _examine_pending(self) -> Verdict:
        """Wait for the step that was dispatched last, judge and report it."""
        if self._pending is None:
            return WELL
        (step, metrics), self._pending = self._pending, None
        metrics = jax.device_get(metrics)
        verdict = self._judge(step, metrics)
        self._report(step, metrics)
        self._journal.event("step", step)
        return verdict

    def _judge(self, step: int, metrics: Metrics) -> Verdict:
        """Check loss and gradient norm of a step; all processes reach the same verdict."""
        self._watchdog.alive()
        if metrics.stop is not None and metrics.stop > 0:
            self._stop_reason = self._watchdog.requested or "another process was asked to stop"
        try:
            verdict = self._health.look(step, float(metrics.loss), float(metrics.gradient_norm))
        except HealthError as error:
            self._journal.event("unhealthy", step, why=str(error))
            raise
        self._announce(verdict, step)
        return verdict

    def _announce(self, verdict: Verdict, step: int) -> None:
        if verdict.action != "continue":
            self.run.console.warn(verdict.text)
            self._journal.event(verdict.action, step)

    def _discard_and_roll_back(
        self, step: int, metrics: Metrics, verdict: Verdict, outcome: Outcome
    ) -> TrainState:
        """Roll back when a step has been dispatched from a state that is discarded."""
        self._pending = None
        if not outcome.synchronizes:
            self._report(step, jax.device_get(metrics))
            self._journal.event("step", step)
        return self._roll_back(verdict, step, save=not outcome.synchronizes)

    def _roll_back(self, verdict: Verdict, step: int, *, save: bool = True) -> TrainState:
        """Load the newest checkpoint before the failure; it becomes the state of ``step``.

        The sample position advances, so the samples of the failed steps are not consumed a second
        time.

        Args:
          verdict: requests the rollback.
          step: the newest step that has been dispatched.
          save: whether to save the state here; otherwise the caller saves it.
        """
        stage, programs = self.run.stage_at(step), self.run.first_stage.programs
        self.clock.pause()
        with self._watchdog.section("checkpoint"):
            found = self.checkpoints.newest(
                self.run.plan, self.run.checkpoint_shapes, until=verdict.good_step
            )
            state = stage.placed(
                programs.steps.from_checkpoint(on_devices(found.state, self.run.checkpoint_shapes))
            )
        if save:
            self._save(step, state, self.progress(step))
        self.step = step
        self.clock.start()
        return state

    def _finite_or_rolled_back(
        self, step: int, state: TrainState, *, save: bool = True
    ) -> TrainState:
        """Return the state after ``step`` if it is finite; otherwise roll back."""
        finite = self.run.stage_at(step).programs.steps.finite(state)
        # With faulty memory, the copies of the processes may differ.
        verdict = self._health.look_at_state(step, bool(processes.agreed_minimum(int(finite))))
        self._announce(verdict, step)
        return self._roll_back(verdict, step, save=save) if verdict.action == "rollback" else state

    def _save(self, step: int, state: TrainState, progress: Progress) -> None:
        since = time.perf_counter()
        with self._watchdog.section("checkpoint"):
            self.tracker.flush()  # the log is never behind a checkpoint
            stored = self.run.first_stage.programs.steps.to_checkpoint(state)
            # The checkpoint said that its evaluation was due; now it is done.
            replace = (
                bool(self.initial_progress.evaluation_due) and step == self.initial_progress.step
            )
            self.checkpoints.save(stored, progress, self.run.plan, replace=replace)
        self._journal.event("checkpoint", step)
        self.clock.checkpoint_s += time.perf_counter() - since
        self._journal.times(step)

    def _evaluate(
        self, step: int, state: TrainState, metrics: Metrics
    ) -> tuple[TrainState, dict[str, float]]:
        """Evaluate the state after a step, and report the result.

        Returns:
          The state with the statistics of its evaluation; the columns of the result.

        Raises:
          Interrupted: the run must stop; the state is saved, and the evaluation is due.
        """
        try:
            with self._watchdog.section("evaluation"):
                final = self._evaluator.evaluate(step, state)
        except Interrupted:
            numbers = {key: float(getattr(metrics, key)) for key in MEASURED}
            due = dataclasses.replace(self.progress(step), evaluation_due=1, **numbers)
            self._save(step, state, due)
            raise
        return final, self._evaluator.report(step, float(metrics.loss))

    def _report(self, step: int, metrics: Metrics, extra: dict[str, float] | None = None) -> None:
        self.step = step
        has_row = self._journal.step(step, metrics, extra)
        self._progress.update(
            step,
            loss=float(metrics.loss),
            images_per_s=self.images_per_s(step),
            epoch=self._journal.epoch(step),
            wait=self._journal.input_wait,
            has_row=has_row,
        )
